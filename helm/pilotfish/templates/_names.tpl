{{- define "pilotfish.name" -}}
{{ printf "%s-%s" .release .role | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pilotfish.selector" -}}
app.kubernetes.io/name: pilotfish
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "pilotfish.image" -}}
{{- $image := .root.Values.image -}}
{{- if not $image.repository -}}
{{- fail (printf "\n\nimage.repository is empty, and no images are published: build and push your own first, in the folder of the Dockerfile:\n\n  for target in coordinator drafter drafter-torch verifier; do\n    docker build --target $target -t REGISTRY/pilotfish-$target:%s . && docker push REGISTRY/pilotfish-$target:%s\n  done\n\nthen give --set image.repository=REGISTRY/pilotfish\n" .root.Chart.AppVersion .root.Chart.AppVersion) -}}
{{- end -}}
{{ $image.repository }}-{{ .target }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}
