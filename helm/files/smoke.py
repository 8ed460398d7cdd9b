"""What `helm test` runs: smoke.py models|completion|metrics|head, with the addresses in API and LAUNCHER. Exit 0: all well.

models      the API lists a model
completion  eight short completions give text, one of them as a stream
metrics     /metrics has the launcher's figures and says that the server is ready
head        the draft head does what was asked, and drafts are accepted as the profile expects
"""

import json
import os
import sys
import urllib.error
import urllib.request

API, LAUNCHER = os.environ["API"], os.environ["LAUNCHER"]
KEY = os.environ.get("VLLM_API_KEY")
PROMPTS = ("The capital of France is", "One, two, three, four,", "Water boils at", "The sun rises in the")
#: fewer drafts say nothing about a mean: the number of the alert and of `radiance status`. A fresh server has about 70: its
#: sampled warm-up and the ends of short completions, where drafts are cut off, pull it below any floor.
ENOUGH_DRAFTS = 200


def get(url, body=None):
    headers = {"Content-Type": "application/json"}
    if KEY and url.startswith(API):
        headers["Authorization"] = f"Bearer {KEY}"
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    # No proxy: the addresses are the cluster's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        return opener.open(request, timeout=300).read().decode()
    except urllib.error.HTTPError as error:
        sys.exit(f"{url} answered {error.code}: {error.read().decode(errors='replace')[:500]}")
    except OSError as error:
        sys.exit(f"{url}: {error}")


def models():
    names = [model["id"] for model in json.loads(get(f"{API}/v1/models"))["data"]]
    if not names:
        sys.exit("the API lists no model")
    print(f"models: {', '.join(names)}")
    return names


def complete(model, prompt, stream):
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": stream}
    answer = get(f"{API}/v1/completions", body)
    if not stream:
        return json.loads(answer)["choices"][0]["text"]
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    if lines[-1:] != ["[DONE]"]:
        sys.exit(f"the stream did not end with [DONE] but with {lines[-1:]}")
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


def completion():
    model = models()[0]
    for i, prompt in enumerate(PROMPTS * 2):
        text = complete(model, prompt, stream=i == 0)
        if not text.strip():
            sys.exit(f"an empty completion of {prompt!r}")
        print(f"completion: {prompt!r} -> {text!r}")


def metrics():
    samples = {}
    for line in get(f"{LAUNCHER}/metrics").splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    if samples.get("radiance_ready") != 1:
        sys.exit(f"radiance_ready is {samples.get('radiance_ready')}, expected 1")
    if samples.get("radiance_vllm_scrape_success") != 1:
        sys.exit("the launcher cannot read vLLM's own metrics")
    print(f"metrics: {len(samples)} samples, ready")


def head():
    status = json.loads(get(f"{LAUNCHER}/status"))
    draft, accepted = status["fast_draft"], status["acceptance"]
    if not draft["ok"]:
        sys.exit(f"the draft head is not as asked (mode {draft['mode']}): {draft['reason']}")
    print(f"head: mode {draft['mode']}, {draft['reason']}")
    if not accepted["available"]:
        print(f"acceptance: {accepted['reason']}")
        return
    mean, floor = accepted["acceptance_per_draft"], accepted["expected_min"]
    print(f"acceptance: {mean} tokens per draft over {accepted['drafts']} drafts, the profile's floor is {floor}")
    if floor is not None and accepted["drafts"] >= ENOUGH_DRAFTS and mean < floor:
        sys.exit("drafts are accepted less than the profile expects")


CHECKS = {"models": models, "completion": completion, "metrics": metrics, "head": head}
if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CHECKS:
        sys.exit(f"usage: smoke.py {'|'.join(CHECKS)}")
    CHECKS[sys.argv[1]]()
