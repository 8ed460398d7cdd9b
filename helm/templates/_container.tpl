{{/* Arguments, environment, ports and probes of the server's container, and the volumes of its pod. */}}

{{/* Of `radiance serve`. Arguments: root, role. */}}
{{- define "radiance.args" -}}
{{- $v := .root.Values -}}
{{- $args := list "serve" "--profile" $v.profile -}}
{{- if or $v.profiles $v.profilesConfigMap -}}{{- $args = concat $args (list "--profiles-dir" "/etc/radiance/profiles") -}}{{- end -}}
{{- $args = concat $args (include "radiance.overrides" .root | fromJsonArray) -}}
{{- $args = concat $args (list "--port" (int $v.ports.http | toString) "--metrics-port" (int $v.ports.metrics | toString)) -}}
{{- $args = concat $args (list "--drain-delay-seconds" (int $v.drain.delaySeconds | toString)) -}}
{{- $args = concat $args (list "--grace-seconds" (int $v.drain.graceSeconds | toString)) -}}
{{- $args = concat $args (list "--log-format" $v.logFormat) -}}
{{- if $v.monitoring.passthrough -}}{{- $args = append $args "--passthrough" -}}{{- end -}}
{{- $args = concat $args $v.launcherArgs -}}
{{- $vllm := $v.vllmArgs -}}
{{- if ne .role "server" -}}
  {{- $vllm = concat $vllm (list "--distributed-executor-backend" "mp" "--nnodes" (int $v.multiNode.size | toString)
        "--master-addr" "$(LWS_LEADER_ADDRESS)" "--master-port" (int $v.multiNode.masterPort | toString)) -}}
  {{- $vllm = concat $vllm (eq .role "leader" | ternary (list "--node-rank" "0") (list "--node-rank" "$(LWS_WORKER_INDEX)" "--headless")) -}}
{{- end -}}
{{- with $vllm -}}{{- $args = concat $args (prepend . "--") -}}{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{- define "radiance.overrides" -}}
{{- $args := list -}}
{{- range $field, $value := .Values.overrides -}}
  {{- $args = concat $args (list "--set" (printf "%s=%s" $field (toJson $value))) -}}
{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{- define "radiance.fetchArgs" -}}
{{- $args := list "fetch" "--profile" .Values.profile -}}
{{- if or .Values.profiles .Values.profilesConfigMap -}}{{- $args = concat $args (list "--profiles-dir" "/etc/radiance/profiles") -}}{{- end -}}
{{- $args = concat $args (include "radiance.overrides" . | fromJsonArray) -}}
{{- /* Nothing to fetch then, but a missing model is found in seconds and by name. */ -}}
{{- if or .Values.offline .Values.models.readOnly -}}{{- $args = append $args "--offline" -}}{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{- define "radiance.env" -}}
{{- $v := .Values -}}
- name: HOME
  value: /home/radiance
- name: XDG_CACHE_HOME
  value: /home/radiance/.cache
- name: HF_HOME
  value: /home/radiance/.cache/huggingface
- name: VLLM_CACHE_ROOT
  value: /home/radiance/.cache/vllm
- name: TRITON_CACHE_DIR
  value: /home/radiance/.cache/triton
{{- if or $v.offline $v.models.readOnly }}
- name: HF_HUB_OFFLINE
  value: "1"
- name: TRANSFORMERS_OFFLINE
  value: "1"
{{- end }}
{{- range $name, $secret := dict "HF_TOKEN" (list $v.huggingFace.secret $v.huggingFace.token "hf-token") "VLLM_API_KEY" (list $v.apiKey.secret $v.apiKey.value "api-key") }}
{{- $reference := index $secret 0 }}
{{- if or $reference.name (index $secret 1) }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ default (include "radiance.fullname" $) $reference.name }}
      key: {{ empty $reference.name | ternary (index $secret 2) $reference.key }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Ports, probes and the stop. Probes ask the launcher, which answers from the first second and knows loading from dead; that of a
worker has no API, follows the leader's readiness, and keeps its ranks while the leader drains. Arguments: root, role.
*/}}
{{- define "radiance.serving" -}}
{{- $v := .root.Values -}}
{{- $facts := include "radiance.facts" .root | fromJson -}}
{{- $probes := $v.probes -}}
{{- $period := int $probes.periodSeconds -}}
{{- $budget := add (int $facts.budget) (int $v.startup.extraSeconds) -}}
ports:
  {{- if ne .role "worker" }}
  - name: http
    containerPort: {{ int $v.ports.http }}
    protocol: TCP
  {{- end }}
  - name: metrics
    containerPort: {{ $v.ports.metrics }}
    protocol: TCP
startupProbe:
  httpGet: {path: /startupz, port: metrics}
  periodSeconds: {{ $period }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: {{ div (add $budget $period -1) $period }}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: {{ $period }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: {{ $probes.livenessFailures }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: {{ $period }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: {{ $probes.readinessFailures }}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ $v.drain.preStopSeconds | quote }}]
{{- end -}}

{{/* Where the models lie: the embedded one is Radiance's own, all others are the hub library's. */}}
{{- define "radiance.mounts" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
- name: home
  mountPath: /home/radiance
- name: cache
  mountPath: /home/radiance/.cache
  {{- with .Values.cache.subPath }}
  subPath: {{ . }}
  {{- end }}
- name: models
  mountPath: /home/radiance/.cache/{{ $facts.embedded | ternary "radiance" "huggingface" }}
  {{- with .Values.models.subPath }}
  subPath: {{ . }}
  {{- end }}
  {{- if .Values.models.readOnly }}
  readOnly: true
  {{- end }}
- name: shm
  mountPath: /dev/shm
- name: tmp
  mountPath: /tmp
{{- if or .Values.profiles .Values.profilesConfigMap }}
- name: profiles
  mountPath: /etc/radiance/profiles
  readOnly: true
{{- end }}
{{- if .Values.multiNode.enabled }}
- name: scripts
  mountPath: /etc/radiance/scripts
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "radiance.volumes" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
{{- range $name := list "models" "cache" }}
{{- $volume := get $.Values $name }}
- name: {{ $name }}
  {{- if or $volume.existingClaim $volume.create }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-%s" (include "radiance.fullname" $) $name) $volume.existingClaim }}
    {{- if $volume.readOnly }}
    readOnly: true
    {{- end }}
  {{- else if $volume.sizeLimit }}
  emptyDir:
    sizeLimit: {{ $volume.sizeLimit }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
# Always: tensor parallel ranks talk through it, and a container's default of 64 MB ends them with SIGBUS.
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ default (printf "%dGi" (add 1 (int $facts.gpus))) .Values.shm.size }}
{{- if or .Values.profiles .Values.profilesConfigMap }}
- name: profiles
  configMap:
    name: {{ default (printf "%s-profiles" (include "radiance.fullname" .)) .Values.profilesConfigMap }}
{{- end }}
{{- if .Values.multiNode.enabled }}
- name: scripts
  configMap:
    name: {{ include "radiance.fullname" . }}-scripts
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The profile files; JSON is YAML, and unlike Helm's YAML it keeps large numbers whole. */}}
{{- define "radiance.profilesData" -}}
{{- range $name, $profile := .Values.profiles }}
{{ $name }}.yaml: {{ toJson $profile | quote }}
{{- end }}
{{- end -}}
