{{- define "turnstone.name" -}}
{{- trunc 40 .Release.Name | trimSuffix "-" -}}
{{- end -}}

{{- define "turnstone.labels" -}}
app.kubernetes.io/name: turnstone
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/*
turnstone.meta: {root, labels, annotations}: labels and annotations of an object: its own, and those of
the values
*/}}
{{- define "turnstone.meta" -}}
labels:
  {{- include "turnstone.labels" .root | nindent 2 }}
  {{- with .labels }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- with .root.Values.labels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with merge (dict) (default dict .annotations) .root.Values.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* turnstone.podMeta: {root, role, annotations}: labels and annotations of the pods of a role */}}
{{- define "turnstone.podMeta" -}}
{{- $v := index .root.Values .role -}}
labels:
  {{- include "turnstone.selector" . | nindent 2 }}
  {{- with $v.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with merge (dict) (default dict .annotations) $v.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* turnstone.selector: {root, role} */}}
{{- define "turnstone.selector" -}}
app.kubernetes.io/name: turnstone
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "turnstone.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "turnstone.nodeImage" -}}
{{- printf "%s:%s" .Values.nodeImage.repository (default .Chart.AppVersion .Values.nodeImage.tag) -}}
{{- end -}}

{{/* turnstone.peerSecret: {root, role}: the secret with the certificate of a role */}}
{{- define "turnstone.peerSecret" -}}
{{- $named := index .root.Values.peers.secrets .role -}}
{{- if $named -}}{{ $named }}
{{- else if .root.Values.peers.generate -}}{{ printf "%s-peer-%s" (include "turnstone.name" .root) .role }}
{{- else -}}{{ fail (printf "peers.secrets.%s: name a secret, or set peers.generate" .role) }}
{{- end -}}
{{- end -}}

{{/* turnstone.variable: a setting's variable: limits.rate is TURN_SERVER_LIMITS_RATE */}}
{{- define "turnstone.variable" -}}
TURN_SERVER_{{ . | upper | replace "." "_" }}
{{- end -}}

{{/* turnstone.settings: {settings, taken}: further settings as variables */}}
{{- define "turnstone.settings" -}}
{{- range $key, $value := .settings }}
{{- if has $key $.taken }}{{ fail (printf "settings: %s is set by the chart" $key) }}{{ end }}
- name: {{ include "turnstone.variable" $key }}
  {{- $text := toString $value }}
  {{- /* The number of a file is a float64, and large ones would be 1e+06. */}}
  {{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $text = toString (int64 $value) }}{{ end }}
  value: {{ $text | quote }}
{{- end }}
{{- end -}}

{{/* turnstone.roleEnv: {root, role}: what all roles have */}}
{{- define "turnstone.roleEnv" -}}
- {name: TURN_HOME, value: {{ ternary "/var/lib/turnstone" "/var/lib/turnstone/home" (eq .role "gateway") }}}
- {name: TURN_SERVER_NAME, value: {{ .root.Values.name | quote }}}
- {name: TURN_SERVER_LOG_FORMAT, value: json}
- {name: TURN_SERVER_PEERS_AUTHORITY, value: /etc/turnstone/peer/ca.crt}
- {name: TURN_SERVER_PEERS_CERTIFICATE, value: /etc/turnstone/peer/tls.crt}
- {name: TURN_SERVER_PEERS_KEY, value: /etc/turnstone/peer/tls.key}
{{- if ne .role "controller" }}
- {name: TURN_SERVER_PEERS_CONTROLLER, value: "{{ include "turnstone.name" .root }}-controller.{{ .root.Release.Namespace }}.svc:7421"}
{{- end }}
{{- if .root.Values.metrics.enabled }}
- {name: TURN_SERVER_TELEMETRY_LISTEN, value: "0.0.0.0:9464"}
- {name: TURN_SERVER_TELEMETRY_NETWORK, value: "on"}
{{- end }}
{{- end -}}

{{/* turnstone.storeEnv: the bucket, for nodes */}}
{{- define "turnstone.storeEnv" -}}
{{- with .Values.store }}
{{- if .bucket }}
- {name: TURN_STORE, value: {{ .bucket | quote }}}
{{- with .endpoint }}
- {name: AWS_ENDPOINT_URL_S3, value: {{ . | quote }}}
{{- end }}
{{- with .region }}
- {name: AWS_REGION, value: {{ . | quote }}}
{{- end }}
{{- if .credentialsSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ .credentialsSecret }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .credentialsSecret }}, key: AWS_SECRET_ACCESS_KEY}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* turnstone.databaseEnv: the database of sessions, for nodes */}}
{{- define "turnstone.databaseEnv" -}}
{{- with .Values.database }}
{{- if .url }}
{{- if not $.Values.store.bucket }}{{ fail "database.url: needs store.bucket, for the objects of these sessions" }}{{ end }}
- {name: TURN_SERVER_NODE_DATABASE, value: {{ .url | quote }}}
{{- if .secret }}
- {name: PGPASSFILE, value: /etc/turnstone/database/passwords}
{{- end }}
{{- if .ca }}
- {name: PGSSLROOTCERT, value: /etc/turnstone/database/ca.crt}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* turnstone.databaseMount and turnstone.databaseVolume: its secret */}}
{{- define "turnstone.databaseMount" -}}
{{- if and .Values.database.url .Values.database.secret }}
- {name: database, mountPath: /etc/turnstone/database, readOnly: true}
{{- end }}
{{- end -}}
{{- define "turnstone.databaseVolume" -}}
{{- if and .Values.database.url .Values.database.secret }}
- {name: database, secret: {secretName: {{ .Values.database.secret }}, defaultMode: 0400}}
{{- end }}
{{- end -}}

{{/* turnstone.unprivileged: a container without any right */}}
{{- define "turnstone.unprivileged" -}}
securityContext:
  allowPrivilegeEscalation: false
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/*
turnstone.placement: {root, role, spread}: where the pods of a role run. With spread they are on different
machines if there are some, unless the values say it otherwise.
*/}}
{{- define "turnstone.placement" -}}
{{- $v := index .root.Values .role -}}
{{- with $v.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if $v.topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml $v.topologySpreadConstraints | nindent 2 }}
{{- else if .spread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "turnstone.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* turnstone.extraEnv and turnstone.extraArgs: of a role's values */}}
{{- define "turnstone.extraEnv" -}}
{{- with .extraEnv }}{{ toYaml . }}{{ end }}
{{- end -}}
{{- define "turnstone.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "turnstone.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* turnstone.check: values that contradict each other */}}
{{- define "turnstone.check" -}}
{{- with .Values.operator }}
{{- if and .enabled .follow (not .default) }}{{ fail "operator.follow: needs operator.default" }}{{ end }}
{{- if gt (int .machines.min) (int .machines.max) }}{{ fail "operator.machines.min: is more than operator.machines.max" }}{{ end }}
{{- end }}
{{- range $role := list "gateway" "controller" "node" "operator" }}
{{- range $key, $value := (index $.Values $role).podLabels }}
{{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") }}{{ fail (printf "%s.podLabels: %s is set by the chart" $role $key) }}{{ end }}
{{- end }}
{{- range $v := (index $.Values $role).extraEnv }}
{{- if hasPrefix "TURN_SERVER_" $v.name }}{{ fail (printf "%s.extraEnv: %s is a setting: write it into %s.settings" $role $v.name $role) }}{{ end }}
{{- end }}
{{- end }}
{{- with .Values.metrics }}
{{- if and (or .podMonitor .serviceMonitor .prometheusRule) (not .enabled) }}{{ fail "metrics.podMonitor, metrics.serviceMonitor and metrics.prometheusRule: need metrics.enabled" }}{{ end }}
{{- end }}
{{- with .Values.node.seccompProfile }}
{{- if and (eq .type "Localhost") (not .localhostProfile) }}{{ fail "node.seccompProfile.localhostProfile: name the file, for the type Localhost" }}{{ end }}
{{- end }}
{{- if and .Values.database.secret (not .Values.database.url) }}{{ fail "database.secret: needs database.url" }}{{ end }}
{{- if and .Values.store.credentialsSecret (not .Values.store.bucket) }}{{ fail "store.credentialsSecret: needs store.bucket" }}{{ end }}
{{- end -}}
