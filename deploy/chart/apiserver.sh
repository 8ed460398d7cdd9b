#!/usr/bin/env bash
# A real Kubernetes API server for tests: deploy/chart/apiserver.sh. Prints the folder with kube-apiserver and kube-controller-manager.
#
# Debian's source package `kubernetes` is the one copy of the server that a package index has: 1.20, long out of support, so a test
# target only. It is built once for each state of this script: 10 to 15 minutes on 2 cores, 3 GB while it builds, 220 MB after.
# As root it installs what it builds with; etcd, which the tests start, comes with it.
set -euo pipefail
key=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/radiance/apiserver
out=$cache/$key
packages=(golang-1.19-go golang-github-modern-go-reflect2-dev dpkg-dev)
say() { echo "[apiserver] $* ($SECONDS s)" >&2; }

command -v etcd >/dev/null || packages+=(etcd-server)
if [[ -x $out/kube-controller-manager ]] && command -v etcd >/dev/null; then
  echo "$out"
  exit 0
fi
if ((EUID != 0)); then
  say "needs root once, to install: ${packages[*]}"
  exit 1
fi
mkdir -p "$cache"
say "packages"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq >&2
apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
if [[ -x $out/kube-controller-manager ]]; then
  echo "$out"
  exit 0
fi

work=$cache/build
rm -rf "$work"
mkdir -p "$work/apt/lists/partial" "$work/apt/etc" "$work/go/src/k8s.io"
cd "$work"
say "source"
# A source list of its own: the machine's is not touched.
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >apt/etc/src.sources
own=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/apt/etc" -o "Dir::State::lists=$work/apt/lists"
  -o APT::Sandbox::User=root)
apt-get "${own[@]}" update -qq >&2
apt-get "${own[@]}" source -qq kubernetes >&2
mv kubernetes-1.20* go/src/k8s.io/kubernetes
cd go/src/k8s.io/kubernetes
export PATH=/usr/lib/go-1.19/bin:$PATH GO111MODULE=off GOPROXY=off GOFLAGS='' CGO_ENABLED=0 GOPATH=$work/go GOCACHE=$work/gocache
# The vendored 1.0.1 crashes with Go 1.18 and newer as soon as a custom resource is made; Debian's 1.0.2 does not.
reflect=vendor/github.com/modern-go/reflect2
rm -r $reflect
mkdir $reflect
cp -L /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} $reflect/
rm -f $reflect/*_test.go
say "the OpenAPI file that the source package lacks"
go build -o openapi-gen k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
folders=$(grep -rlE --include='*.go' '^// \+k8s:openapi-gen=' pkg staging/src/k8s.io vendor/k8s.io | xargs -n1 dirname | sort -u |
  grep -vE 'testdata|/test/|sample|code-generator|metrics/pkg/apis' | sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' \
  -e 's#^vendor/#k8s.io/kubernetes/vendor/#' -e 's#^pkg/#k8s.io/kubernetes/pkg/#' | sort -u | paste -sd,)
./openapi-gen --logtostderr -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -i "$folders" \
  -p k8s.io/kubernetes/pkg/generated/openapi -r violations.txt >&2
# Clients ask for the version; without the stamp it is nonsense.
flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  for prefix in "" k8s.io/kubernetes/vendor/; do
    flags+=" -X $prefix$package.gitVersion=v1.20.2 -X $prefix$package.gitMajor=1 -X $prefix$package.gitMinor=20"
  done
done
mkdir -p "$work/bin"
for program in kube-apiserver kube-controller-manager; do
  say "$program"
  go build -trimpath -ldflags "$flags" -o "$work/bin/$program" k8s.io/kubernetes/cmd/$program
done
rm -rf "$out"
mv "$work/bin" "$out"
cd /
chmod -R u+w "$work"
rm -rf "$work"
say "done"
echo "$out"
