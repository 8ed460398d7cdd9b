"""Runs outside vLLM: profiles -> plan -> supervise `vllm serve`, with an exporter beside it. Never imports torch or vllm."""
