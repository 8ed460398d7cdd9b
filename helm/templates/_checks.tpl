{{/* What a schema cannot say: rules between values. All broken rules are listed at once; each names its values and the way out. */}}
{{- define "radiance.checks" -}}
{{- $facts := include "radiance.facts" . | fromJson -}}
{{- $v := .Values -}}
{{- $bad := list -}}

{{- /* profile and accelerator */ -}}
{{- if and $v.profilesConfigMap $v.profiles -}}
  {{- $bad = append $bad (printf "profilesConfigMap is %q and profiles has entries; give one of them" $v.profilesConfigMap) -}}
{{- end -}}
{{- if not $facts.known -}}
  {{- $unread := printf "the chart cannot read profile %q in ConfigMap %q" $v.profile $v.profilesConfigMap -}}
  {{- if not $v.startup.budgetSeconds -}}
    {{- $bad = append $bad (printf "startup.budgetSeconds is 0: %s; give its startup_budget_seconds" $unread) -}}
  {{- end -}}
  {{- if not $v.accelerator.type -}}
    {{- $bad = append $bad (printf "accelerator.type is empty: %s; give it, and accelerator.count" $unread) -}}
  {{- end -}}
{{- end -}}
{{- if not (has $facts.kind $facts.kinds) -}}
  {{- $bad = append $bad (printf "accelerator.type is %q, but profile %q is for: %s" $facts.kind $v.profile (join ", " $facts.kinds)) -}}
{{- end -}}
{{- if ne $facts.kind "cpu" -}}
  {{- if and $facts.known (ne (mod (int $facts.ranks) (int $facts.nodes)) 0) -}}
    {{- $bad = append $bad (printf "multiNode.size is %d, but tensor x pipeline x data parallel is %d: not a multiple" (int $facts.nodes) (int $facts.ranks)) -}}
  {{- else if and $facts.known (not $v.accelerator.dra.existingTemplate) (lt (mul (int $facts.gpus) (int $facts.nodes)) (int $facts.ranks)) -}}
    {{- $bad = append $bad (printf "accelerator.count is %d on %d nodes, but tensor x pipeline x data parallel is %d; give more, or 0 to let the chart count" (int $facts.gpus) (int $facts.nodes) (int $facts.ranks)) -}}
  {{- end -}}
{{- else if or $v.multiNode.enabled $v.accelerator.dra.enabled -}}
  {{- $bad = append $bad "accelerator.type is cpu: multiNode.enabled and accelerator.dra.enabled need GPUs" -}}
{{- end -}}
{{- if $v.accelerator.dra.enabled -}}
  {{- if $v.accelerator.resource -}}
    {{- $bad = append $bad (printf "accelerator.resource is %q and accelerator.dra.enabled is true; devices come from one of them" $v.accelerator.resource) -}}
  {{- end -}}
  {{- if not (semverCompare ">=1.32-0" .Capabilities.KubeVersion.Version) -}}
    {{- $bad = append $bad (printf "accelerator.dra.enabled needs Kubernetes 1.32 or newer; this is %s" .Capabilities.KubeVersion.Version) -}}
  {{- end -}}
{{- end -}}

{{- /* ports, drain */ -}}
{{- if eq (int $v.ports.http) (int $v.ports.metrics) -}}
  {{- $bad = append $bad (printf "ports.http and ports.metrics are both %d" (int $v.ports.http)) -}}
{{- end -}}
{{- $grace := include "radiance.grace" . | int -}}
{{- $given := int $v.terminationGracePeriodSeconds -}}
{{- if and $given (lt $given $grace) -}}
  {{- $bad = append $bad (printf "terminationGracePeriodSeconds is %d, but drain takes %d (preStopSeconds %d + delaySeconds %d + graceSeconds %d + slackSeconds %d): running requests would be cut; raise it or lower those"
        $given $grace (int $v.drain.preStopSeconds) (int $v.drain.delaySeconds) (int $v.drain.graceSeconds) (int $v.drain.slackSeconds)) -}}
{{- end -}}
{{- $owned := dict "--profile" "profile" "--profiles-dir" "profiles" "--host" "the chart" "--port" "ports.http" "--metrics-host" "the chart" "--metrics-port" "ports.metrics" "--grace-seconds" "drain.graceSeconds" "--drain-delay-seconds" "drain.delaySeconds" "--set" "overrides" "--log-format" "logFormat" "--dry-run" "nothing: a pod must serve" "--passthrough" "monitoring.passthrough" "--no-passthrough" "monitoring.passthrough" "--" "vllmArgs" -}}
{{- range $arg := $v.launcherArgs -}}
  {{- with get $owned (splitList "=" $arg | first) -}}
    {{- $bad = append $bad (printf "launcherArgs: %s is set from %s" $arg .) -}}
  {{- end -}}
  {{- if and $v.multiNode.enabled (eq (splitList "=" $arg | first) "--fallback-after-seconds") -}}
    {{- $bad = append $bad (printf "launcherArgs: %s with multiNode.enabled: one node of a group cannot fall back alone; leave it out, and set overrides.fast_draft for all nodes" $arg) -}}
  {{- end -}}
{{- end -}}

{{- /* vLLM takes the beginning of a name for the whole. */ -}}
{{- $flags := .Files.Get "files/flags.json" | fromJson -}}
{{- range $arg := $v.vllmArgs -}}
  {{- $name := splitList "=" $arg | first | replace "_" "-" -}}
  {{- range $flag, $instead := $flags -}}
    {{- if or (eq $name $flag) (and (ge (len $name) 4) (hasPrefix $name $flag)) -}}
      {{- $bad = append $bad (printf "vllmArgs: %s would fight with the launcher; set %s" $arg $instead) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- /* volumes */ -}}
{{- $many := include "radiance.severalPods" . -}}
{{- range $name := list "models" "cache" -}}
  {{- $volume := get $v $name -}}
  {{- $modes := join ", " $volume.accessModes -}}
  {{- if and $volume.create $volume.existingClaim -}}
    {{- $bad = append $bad (printf "%s.create is true and %s.existingClaim is %q; give one of them" $name $name $volume.existingClaim) -}}
  {{- end -}}
  {{- if or $volume.create $volume.existingClaim -}}
    {{- if not (or (has "ReadWriteMany" $volume.accessModes) (has "ReadOnlyMany" $volume.accessModes)) -}}
      {{- if $many -}}
        {{- $bad = append $bad (printf "%s.accessModes is [%s], but there will be several pods (%s): all but one would hang; use ReadWriteMany (or models.readOnly with ReadOnlyMany), or no claim" $name $modes $many) -}}
      {{- else if eq "RollingUpdate" (get $v.strategy "type" | default "") -}}
        {{- $bad = append $bad (printf "strategy.type is RollingUpdate, but %s.accessModes is [%s]: the new pod would wait for the old one's volume; leave strategy empty" $name $modes) -}}
      {{- end -}}
    {{- else if and (eq $modes "ReadOnlyMany") (not (and (eq $name "models") $v.models.readOnly)) -}}
      {{- $bad = append $bad (printf "%s.accessModes is [ReadOnlyMany], but pods write to it; only models with models.readOnly can be so" $name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.models.readOnly (not $v.models.existingClaim) -}}
  {{- $bad = append $bad "models.readOnly is true without models.existingClaim: an empty volume that nobody can fill" -}}
{{- end -}}
{{- if and $v.offline (or $facts.hub $facts.embedded) (not $v.models.existingClaim) (not $v.models.create) -}}
  {{- $bad = append $bad (printf "offline is true, but the models of profile %q have no volume; set models.existingClaim to one that has them (radiance fetch fills it)" $v.profile) -}}
{{- end -}}

{{- /* secrets */ -}}
{{- range $name, $value := dict "huggingFace.token" $v.huggingFace.token "apiKey.value" $v.apiKey.value -}}
  {{- $secret := eq $name "apiKey.value" | ternary $v.apiKey.secret.name $v.huggingFace.secret.name -}}
  {{- if and $value (not $v.allowInlineSecrets) -}}
    {{- $bad = append $bad (printf "%s holds a secret, which Helm would keep in its release data; name a Secret in %s.secret, or set allowInlineSecrets" $name (splitList "." $name | first)) -}}
  {{- end -}}
  {{- if and $value $secret -}}
    {{- $bad = append $bad (printf "%s and %s.secret.name (%s) are both given; give one of them" $name (splitList "." $name | first) $secret) -}}
  {{- end -}}
{{- end -}}
{{- $ours := include "radiance.env" . | fromYamlArray -}}
{{- range $entry := $v.extraEnv -}}
  {{- $name := get $entry "name" | toString -}}
  {{- if and (get $entry "value") (regexMatch "(?i)KEY|TOKEN([^I]|$)|SECRET|PASSWORD|PASSWD|CREDENTIAL" $name) (not $v.allowInlineSecrets) -}}
    {{- $bad = append $bad (printf "extraEnv: %s looks like a secret; use valueFrom.secretKeyRef, or set allowInlineSecrets" $name) -}}
  {{- end -}}
  {{- range $ours -}}
    {{- if eq .name $name -}}
      {{- $bad = append $bad (printf "extraEnv: %s is set by the chart; see the README for the value it comes from" $name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $arg := concat $v.vllmArgs $v.launcherArgs -}}
  {{- if regexMatch "^--(api[-_]k|hf[-_]t)" $arg -}}
    {{- $bad = append $bad (printf "vllmArgs: %s would show a secret in the pod's command line; use apiKey.secret or huggingFace.secret" (splitList "=" $arg | first)) -}}
  {{- end -}}
{{- end -}}

{{- /* scaling, routing, monitoring, names */ -}}
{{- $scaling := $v.autoscaling -}}
{{- if and $scaling.type (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
  {{- $bad = append $bad (printf "autoscaling.minReplicas is %d, more than maxReplicas, %d" (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.type "keda") (not $scaling.keda.serverAddress) -}}
  {{- $bad = append $bad "autoscaling.keda.serverAddress is empty; give the address of your Prometheus" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
  {{- $bad = append $bad "ingress.hosts is empty; give at least one, its host may be empty" -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) -}}
  {{- $bad = append $bad "gateway.parentRefs is empty; name the Gateway that the route belongs to" -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
  {{- $bad = append $bad "monitoring.podMonitor.enabled and monitoring.serviceMonitor.enabled are both true: every series would come twice" -}}
{{- end -}}
{{- if eq (include "radiance.fullname" .) "vllm" -}}
  {{- $bad = append $bad "the name would be \"vllm\": service links of such a Service are VLLM_PORT and the like, which vLLM reads as settings; set another fullnameOverride" -}}
{{- end -}}
{{- range $field := list "labels" "podLabels" -}}
  {{- range $key, $_ := get $v $field -}}
    {{- if or (hasPrefix "app.kubernetes.io/" $key) (eq $key "helm.sh/chart") -}}
      {{- $bad = append $bad (printf "%s: %s is the chart's own label" $field $key) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- if $bad -}}
  {{- fail (printf "\n\n  * %s\n" (join "\n  * " $bad)) -}}
{{- end -}}
{{- end -}}

{{/* Why there can be more than one pod; empty if there cannot. */}}
{{- define "radiance.severalPods" -}}
{{- if .Values.multiNode.enabled -}}
multiNode.size {{ .Values.multiNode.size }}
{{- else if .Values.autoscaling.type -}}
{{- if gt (int .Values.autoscaling.maxReplicas) 1 -}}autoscaling.maxReplicas {{ .Values.autoscaling.maxReplicas }}{{- end -}}
{{- else if gt (int .Values.replicas) 1 -}}
replicas {{ .Values.replicas }}
{{- end -}}
{{- end -}}

{{/* Seconds from the begin of a stop until SIGKILL may come. */}}
{{- define "radiance.grace" -}}
{{- add (int .Values.drain.preStopSeconds) (int .Values.drain.delaySeconds) (int .Values.drain.graceSeconds) (int .Values.drain.slackSeconds) -}}
{{- end -}}
