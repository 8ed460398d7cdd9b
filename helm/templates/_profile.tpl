{{/*
The profile as the launcher will see it. Built-in ones are copied into files/profiles.json by deploy/chart/generate.py; the ones
in .Values.profiles may extend them or each other, by the launcher's rules (launcher/layers.py).
*/}}
{{- define "radiance.profile" -}}
{{- $catalogue := .Files.Get "files/profiles.json" | fromJson -}}
{{- $known := concat (keys $catalogue) (keys .Values.profiles) | uniq | sortAlpha | join ", " -}}
{{- if not .Values.profile -}}
  {{- fail (printf "profile is empty; set it to one of: %s" $known) -}}
{{- else if .Values.profilesConfigMap -}}
  {{- get $catalogue .Values.profile | default dict | toJson -}}
{{- else if not (or (hasKey $catalogue .Values.profile) (hasKey .Values.profiles .Values.profile)) -}}
  {{- fail (printf "profile %q is unknown; known: %s (add your own under profiles)" .Values.profile $known) -}}
{{- else -}}
  {{- include "radiance.resolve" (dict "name" .Values.profile "mine" .Values.profiles "catalogue" $catalogue "above" list) -}}
{{- end -}}
{{- end -}}

{{- define "radiance.resolve" -}}
{{- $above := append .above .name -}}
{{- if not (hasKey .mine .name) -}}
  {{- if not (hasKey .catalogue .name) -}}
    {{- fail (printf "profiles.%s.extends: there is no profile %q" (last .above) .name) -}}
  {{- end -}}
  {{- get .catalogue .name | toJson -}}
{{- else -}}
  {{- $own := get .mine .name | deepCopy -}}
  {{- if ne $own.name .name -}}
    {{- fail (printf "profiles.%s.name is %q; it must be the key, %q" .name $own.name .name) -}}
  {{- end -}}
  {{- if not $own.extends -}}
    {{- toJson $own -}}
  {{- else -}}
    {{- /* A profile that extends its own name means the built-in one it lies over. */ -}}
    {{- $mine := eq $own.extends .name | ternary dict .mine -}}
    {{- if and (has $own.extends .above) (hasKey $mine $own.extends) -}}
      {{- fail (printf "profiles.%s.extends goes in a ring: %s" .name (append $above $own.extends | join " -> ")) -}}
    {{- end -}}
    {{- $base := include "radiance.resolve" (dict "name" $own.extends "mine" $mine "catalogue" .catalogue "above" $above) | fromJson -}}
    {{- include "radiance.over" (dict "base" $base "own" $own) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* "own" laid over "base", as JSON: a new source of a model, drafter or tokenizer takes the place of the old one. */}}
{{- define "radiance.over" -}}
{{- $base := .base -}}
{{- $own := .own -}}
{{- range $section := list "model" "drafter" "tokenizer" -}}
  {{- $new := get $own $section | default dict -}}
  {{- if or (hasKey $new "id") (hasKey $new "path") (hasKey $new "embedded") (hasKey $new "same_as_model") -}}
    {{- $_ := unset $base $section -}}
  {{- end -}}
{{- end -}}
{{- mergeOverwrite $base $own | toJson -}}
{{- end -}}

{{/* What templates need to know of the profile, as JSON: kind, gpus (of a pod), ranks, budget, hub, embedded. */}}
{{- define "radiance.facts" -}}
{{- $file := include "radiance.profile" . | fromJson -}}
{{- $profile := include "radiance.over" (dict "base" (deepCopy $file) "own" .Values.overrides) | fromJson -}}
{{- $ranks := 1 -}}
{{- range $field := list "tensor_parallel_size" "pipeline_parallel_size" "data_parallel_size" -}}
  {{- $ranks = mul $ranks (get $profile $field | default 1 | int) -}}
{{- end -}}
{{- $nodes := .Values.multiNode.enabled | ternary (int .Values.multiNode.size) 1 -}}
{{- $kinds := dig "accelerator" "kinds" (empty $file | ternary (list "nvidia" "amd" "cpu") (list "nvidia" "amd")) $profile -}}
{{- $kind := default (first $kinds) .Values.accelerator.type -}}
{{- $gpus := eq $kind "cpu" | ternary 0 (.Values.accelerator.count | int | default (div $ranks $nodes)) -}}
{{- $model := $profile.model | default dict -}}
{{- $drafter := $profile.drafter | default dict -}}
{{- $tokenizer := $profile.tokenizer | default dict -}}
{{- dict "kind" $kind "kinds" $kinds "gpus" $gpus "ranks" $ranks "nodes" $nodes
      "budget" (.Values.startup.budgetSeconds | int | default (int $profile.startup_budget_seconds) | default 600)
      "embedded" (not (empty $model.embedded))
      "hub" (or (not (empty $model.id)) (not (empty $drafter.id)) (not (empty $tokenizer.id)) (empty $file))
      "known" (not (empty $file)) | toJson -}}
{{- end -}}
