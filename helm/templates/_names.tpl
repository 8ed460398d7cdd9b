{{/* Names and labels. Everything is named after the release, never after a model: model names have slashes, dots and capitals. */}}

{{- define "radiance.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end -}}

{{/*
At most 44 characters, so that every suffix fits into 63. A Service's name may hold no dot and no leading digit, a release's may.
A name that had to be cut gets a hash, so that two long releases do not meet. Never "vllm": the service links of a Service of
that name are VLLM_PORT and the like, which vLLM takes for settings.
*/}}
{{- define "radiance.fullname" -}}
{{- $name := include "radiance.name" . -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
  {{- $full = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) | replace "." "-" -}}
  {{- if regexMatch "^[0-9]" $full -}}{{- $full = printf "r%s" $full -}}{{- end -}}
  {{- if gt (len $full) 44 -}}
    {{- $full = printf "%s-%s" ($full | trunc 36 | trimSuffix "-") (sha256sum $full | trunc 7) -}}
  {{- end -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "radiance.selector" -}}
app.kubernetes.io/name: {{ include "radiance.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of every object; only `radiance.selector` is in selectors, so that an upgrade can change the rest. */}}
{{- define "radiance.labels" -}}
{{ include "radiance.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: radiance
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "radiance.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "radiance.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The image; a digest beats a tag, and the tag's variant follows the accelerator. */}}
{{- define "radiance.image" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else if $image.tag -}}
{{- printf "%s:%s" $image.repository $image.tag -}}
{{- else -}}
{{- $variant := default (get (dict "nvidia" "cuda" "amd" "rocm" "cpu" "cpu") $facts.kind) $image.variant -}}
{{- printf "%s:%s-%s" $image.repository .Chart.AppVersion $variant -}}
{{- end -}}
{{- end -}}

{{- define "radiance.monitorLabels" -}}
{{- $own := include "radiance.labels" .root | fromYaml -}}
{{- toYaml (mergeOverwrite $own .labels) -}}
{{- end -}}
