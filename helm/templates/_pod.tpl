{{/*
The pod, for the Deployment and for leaders and workers of a LeaderWorkerSet. Arguments: root, role (server, leader, worker).

Home is an emptyDir, with the cache volume at ~/.cache and the models in it: everything a uid without an entry in /etc/passwd
may write lies there, and a read-only root file system changes nothing.
*/}}
{{- define "radiance.pod" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $facts := include "radiance.facts" $root | fromJson -}}
{{- $worker := eq .role "worker" -}}
metadata:
  labels:
    {{- include "radiance.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $worker | ternary "worker" "server" }}
    {{- with mergeOverwrite (deepCopy $v.labels) $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: radiance
    radiance/profile: {{ $v.profile }}
    {{- /* What a pod reads at its start only; a change there must start it anew. */}}
    {{- with $v.profiles }}
    checksum/profiles: {{ include "radiance.profilesData" $root | sha256sum }}
    {{- end }}
    {{- if or $v.huggingFace.token $v.apiKey.value }}
    checksum/secrets: {{ printf "%s %s" $v.huggingFace.token $v.apiKey.value | sha256sum }}
    {{- end }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "radiance.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds | int | default (include "radiance.grace" $root) }}
  {{- with $v.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with include "radiance.scheduling" $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $v.accelerator.dra.enabled }}
  resourceClaims:
    - name: accelerators
      resourceClaimTemplateName: {{ default (include "radiance.fullname" $root) $v.accelerator.dra.existingTemplate }}
  {{- end }}
  initContainers:
    {{- if and $v.fetch.enabled (or $facts.hub $facts.embedded) }}
    - name: fetch
      {{- include "radiance.container" $root | nindent 6 }}
      args: {{ include "radiance.fetchArgs" $root }}
      {{- with $v.fetch.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
    {{- if $worker }}
    - name: wait-for-leader
      {{- include "radiance.container" $root | nindent 6 }}
      command: [python3, /etc/radiance/scripts/wait.py]
      # The launcher would wait too, but the startup probe counts from its first second, and the leader's fetch container may still run then.
      # As long as the leader's own start may take: a restart of this container would restart the group.
      args: [$(LWS_LEADER_ADDRESS), {{ $v.ports.metrics | quote }}, {{ include "radiance.progressSeconds" $root | quote }}]
    {{- end }}
    {{- with $v.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  containers:
    - name: radiance
      {{- include "radiance.container" $root | nindent 6 }}
      args:
        {{- include "radiance.args" . | nindent 8 }}
      {{- with include "radiance.resources" $root }}
      resources:
        {{- . | nindent 8 }}
      {{- end }}
      {{- include "radiance.serving" . | nindent 6 }}
      terminationMessagePolicy: FallbackToLogsOnError
    {{- with $v.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "radiance.volumes" $root | trim | nindent 4 }}
{{- end -}}

{{/* What all containers of the image share. */}}
{{- define "radiance.container" -}}
image: {{ include "radiance.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  {{- include "radiance.env" . | nindent 2 }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "radiance.mounts" . | nindent 2 }}
{{- end -}}

{{- define "radiance.scheduling" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
{{- $taint := get (dict "nvidia" "nvidia.com/gpu" "amd" "amd.com/gpu") $facts.kind -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.tolerations (and $taint .Values.accelerator.tolerate) }}
tolerations:
  {{- if and $taint .Values.accelerator.tolerate }}
  - key: {{ $taint }}
    operator: Exists
    effect: NoSchedule
  {{- end }}
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- $spread := .Values.topologySpreadConstraints -}}
{{- if and (not $spread) (include "radiance.severalPods" .) -}}
{{- $spread = list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway") -}}
{{- end }}
{{- with $spread }}
topologySpreadConstraints:
  {{- range . }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "radiance.selector" $ | fromYaml)) }}
  - {{- toYaml (merge (deepCopy .) $own) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "radiance.resources" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.accelerator.dra.enabled -}}
  {{- $_ := set $resources "claims" (list (dict "name" "accelerators")) -}}
{{- else if $facts.gpus -}}
  {{- $name := default (get (dict "nvidia" "nvidia.com/gpu" "amd" "amd.com/gpu") $facts.kind) .Values.accelerator.resource -}}
  {{- $_ := set $resources "limits" (merge (dict $name (int $facts.gpus)) (get $resources "limits" | default dict)) -}}
{{- end -}}
{{- with $resources -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Longer than any start: a stop, a download of an hour, and the budget. */}}
{{- define "radiance.progressSeconds" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
{{- add (include "radiance.grace" . | int) 3600 (int $facts.budget) (int .Values.startup.extraSeconds) -}}
{{- end -}}

{{/* A test runs where the image is already, so tolerations and selectors of the server hold for it too. */}}
{{- define "radiance.testScheduling" -}}
{{- $scheduling := include "radiance.scheduling" . | fromYaml -}}
{{- with omit $scheduling "topologySpreadConstraints" "runtimeClassName" "priorityClassName" -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}
