// docker buildx bake            the image for NVIDIA GPUs
// docker buildx bake release    what a release has: cuda and rocm. cpu is for tests and is never in it
//
// To push: --set '*.tags=REGISTRY/radiance:TAG' --push; `make release-image` does that, with SBOM and signature.

// GitHub sets it; elsewhere GITHUB_SHA=$(git rev-parse HEAD) docker buildx bake
variable "GITHUB_SHA" { default = "unknown" }
variable "BASE_IMAGE" { default = "" }
variable "ROCM_IMAGE" { default = "" }
// only for cpu: PyTorch's index of CPU builds. An address without credentials, for it stays in the image's history
variable "PIP_EXTRA_INDEX_URL" { default = "" }

group "default" { targets = ["cuda"] }
group "release" { targets = ["cuda", "rocm"] }

target "common" {
  context   = "."
  platforms = ["linux/amd64"]
  args = {
    REVISION = GITHUB_SHA
    // null leaves the Dockerfile's own default
    BASE_IMAGE = BASE_IMAGE != "" ? BASE_IMAGE : null
    ROCM_IMAGE = ROCM_IMAGE != "" ? ROCM_IMAGE : null
  }
}

target "cuda" {
  inherits = ["common"]
  target   = "cuda"
  tags     = ["radiance:cuda"]
}

target "rocm" {
  inherits = ["common"]
  target   = "rocm"
  tags     = ["radiance:rocm"]
}

target "cpu" {
  inherits = ["common"]
  target   = "cpu"
  tags     = ["radiance:cpu", "localhost/radiance:cpu"]
  args     = { PIP_EXTRA_INDEX_URL = PIP_EXTRA_INDEX_URL }
  output   = ["type=docker"]
}
