{{- define "offloaderd.labels" -}}
app.kubernetes.io/name: offloaderd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The daemons' pods, whoever made them. */}}
{{- define "offloaderd.selector" -}}
{{- if eq .Values.mode "sidecar" }}
{{- toYaml .Values.sidecar.selector }}
{{- else -}}
app.kubernetes.io/name: offloaderd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{/* The Service under which pods have names. */}}
{{- define "offloaderd.names" -}}
{{- if eq .Values.mode "sidecar" }}{{ .Values.sidecar.service }}{{ else }}{{ .Release.Name }}{{ end }}
{{- end }}

{{/* A section and those below it as TOML: a dictionary of `name` and `values`. JSON's texts, numbers and lists are TOML's. */}}
{{- define "offloaderd.toml" -}}
{{- $name := .name }}
{{- if $name }}
[{{ $name }}]
{{- end }}
{{- range $key, $value := .values }}
{{- if and (not (kindIs "map" $value)) (not (kindIs "invalid" $value)) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .values }}
{{- if kindIs "map" $value }}
{{ include "offloaderd.toml" (dict "name" (ternary (printf "%s.%s" $name $key) $key (ne $name "")) "values" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where daemons are called: the port of all, and with several processes in a pod that of each. */}}
{{- define "offloaderd.ports" -}}
- {protocol: TCP, port: 7650}
{{- $count := dig "daemon" "processes" 1 .Values.config | int }}
{{- $first := dig "grpc" "process_port" 7660 .Values.config | int }}
{{- if and (gt $count 1) $first }}
- {protocol: TCP, port: {{ add1 $first }}, endPort: {{ add $first $count }}}
{{- end }}
{{- end }}

{{/* The container; with mode sidecar an init container that goes on running, and stops after its broker. */}}
{{- define "offloaderd.container" -}}
name: offloaderd
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if eq .Values.mode "sidecar" }}
restartPolicy: Always
{{- end }}
args: ["serve", "--config", "/etc/offloaderd/offloaderd.toml"]
env:
  - name: OFFLOADERD__DAEMON__ID
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: OFFLOADERD__GRPC__ADVERTISE
    value: $(OFFLOADERD__DAEMON__ID).{{ include "offloaderd.names" . }}.{{ .Release.Namespace }}.svc:7650
  - name: OFFLOADERD__OBJECTS__ACCESS_KEY
    valueFrom: {secretKeyRef: {name: {{ .Values.secrets.bucket }}, key: access_key, optional: true}}
  - name: OFFLOADERD__OBJECTS__SECRET_KEY
    valueFrom: {secretKeyRef: {name: {{ .Values.secrets.bucket }}, key: secret_key, optional: true}}
  # Nodes in ZooKeeper are for this name alone: whoever writes them decides over all that is stored.
  - {name: OFFLOADERD__METADATA__ACL, value: creator}
  - {name: OFFLOADERD__METADATA__USERNAME, value: offloaderd}
  - name: OFFLOADERD__METADATA__PASSWORD
    valueFrom: {secretKeyRef: {name: {{ .Values.secrets.zookeeper }}, key: password}}
  # For `kubectl exec POD -- offloadctl ...`, where the Secret is there.
  - {name: OFFLOADCTL_TLS_CA, value: /etc/offloaderd-tls/ca.crt}
  - {name: OFFLOADCTL_TLS_CERT, value: /etc/offloaderd-operator/tls.crt}
  - {name: OFFLOADCTL_TLS_KEY, value: /etc/offloaderd-operator/tls.key}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: offloader-grpc, containerPort: 7650}
  - {name: offloader-http, containerPort: 7651}
# Alive: its loop turns. A daemon that waits for ZooKeeper or the bucket is alive, and no restart helps it.
livenessProbe:
  httpGet: {path: /healthz, port: offloader-http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- if ne .Values.mode "sidecar" }}
# None for a sidecar: a daemon that waits for the bucket must not take its broker out of service.
readinessProbe:
  httpGet: {path: /readyz, port: offloader-http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: ["ALL"]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: offloaderd-config, mountPath: /etc/offloaderd, readOnly: true}
  - {name: offloaderd-tls, mountPath: /etc/offloaderd-tls, readOnly: true}
  - {name: offloaderd-operator, mountPath: /etc/offloaderd-operator, readOnly: true}
  - {name: offloaderd-tmp, mountPath: /tmp}
{{- end }}

{{- define "offloaderd.volumes" -}}
{{- /* A sidecar's files are root's, and an fsGroup that would let the daemon read them is one for the broker's volumes as well. */ -}}
{{- $mode := ternary "0444" "0440" (eq .Values.mode "sidecar") -}}
- {name: offloaderd-config, configMap: {name: {{ .Release.Name }}}}
- {name: offloaderd-tls, secret: {secretName: {{ .Values.secrets.tls }}, defaultMode: {{ $mode }}}}
- {name: offloaderd-operator, secret: {secretName: {{ .Values.secrets.operator }}, defaultMode: {{ $mode }}, optional: true}}
- {name: offloaderd-tmp, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
{{- end }}
