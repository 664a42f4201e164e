package packaging_test

import (
	"strings"
	"testing"
)

// vendorProjects have the shapes of what vendors publish in several files, with their habits.
var vendorProjects = map[string]map[string]string{
	"metrics behind a proxy": {
		"docker-compose.yml": `
x-logging: &logging
  logging: {driver: json-file, options: {max-size: "${LOG_SIZE:-10m}"}}
include: [proxy/compose.yml]
services:
  influxdb:
    <<: *logging
    image: vendor/influxdb:${INFLUX_VERSION:-2.7}
    env_file: [./common.env, ./influx.env]
    environment:
      DOCKER_INFLUXDB_INIT_PASSWORD: ${INFLUX_PASSWORD:?set it in .env}
      RETENTION: 1.10
      STRICT: no
      MODE: 0644
    volumes: ["${PWD}/influx:/etc/influx:ro", "data:/var/lib/influxdb2"]
    healthcheck: {test: ["CMD-SHELL", "curl -f http://localhost:$${PORT:-8086}/ping"], interval: 10s}
  grafana:
    <<: *logging
    image: "vendor/grafana:${GRAFANA_VERSION:-11.0}"
    depends_on: {influxdb: {condition: service_healthy}}
    ports: ["${GRAFANA_PORT:-3000}:3000"]
    labels: {traefik.http.routers.g.rule: "Host(` + "`grafana.${DOMAIN}`" + `)"}
volumes: {data: {}}
`,
		".env":              "DOMAIN=plant.example\nURL=https://${DOMAIN}\n",
		"common.env":        "TZ=${TZ:-Europe/Berlin}\nORG=plant\n",
		"influx.env":        "# ${NEVER}\nBUCKET=${ORG}-data\nROOT_URL=${URL}/influx\nPRICE='$5'\n",
		"influx/a.conf":     "a",
		"proxy/compose.yml": "services: {proxy: {image: 'vendor/proxy:${PROXY_VERSION}', volumes: ['./conf.d:/conf.d:ro'], ports: ['${HTTP_PORT:-8080}:80'], command: ['--host=${DOMAIN:-localhost}']}}\n",
		"proxy/.env":        "PROXY_VERSION=3.1\n",
		"proxy/conf.d/a":    "a",
	},
	"base, common and override": {
		"docker-compose.yml": `
services:
  api:
    extends: {file: common/base.yml, service: app}
    environment: {ROLE: api, DB: "${DB_HOST:-db}:${DB_PORT-5432}"}
    ports: !override ["${API_PORT:-8000}:8000"]
  worker: {extends: {file: common/base.yml, service: app}, environment: [ROLE=worker, "THREADS=${THREADS}", QUEUE], ports: !reset []}
  db: {image: "vendor/db:16", environment: {POSTGRES_PASSWORD: "${DB_PASSWORD-changeme}", PORT: "${DB_PORT}"}, tmpfs: /run}
`,
		"docker-compose.override.yml": "services: {api: {command: [serve, '--opts={}', '${OPTIONS:-{}}'], labels: !reset null}}\n",
		"common/base.yml":             "services: {app: {image: 'vendor/app:${TAG:-${CHANNEL:-stable}}', labels: {a: b}, env_file: app.env, ports: ['9000:9000'], restart: '${RESTART:-unless-stopped}'}}\n",
		"common/app.env":              "LEVEL=${LEVEL:-info}\nFORMAT=\"${LEVEL} $$\"\n",
	},
	"profiles and secrets": {
		"docker-compose.yml": `
services:
  core:
    image: vendor/core:1
    entrypoint: []
    command: [/bin/core, --token-file, /run/secrets/token]
    secrets: [token]
    configs: [{source: rules, target: /etc/rules.yml}]
    environment: {DEBUG: "${DEBUG+1}", EXTRA: "${EXTRA:+--extra ${EXTRA}}"}
  debug: {image: "vendor/debug:${DEBUG_TAG-latest}", profiles: [debug], network_mode: "service:core"}
secrets: {token: {file: "${SECRETS:-./secrets}/token"}}
configs: {rules: {content: "name: ${SITE:-site-1}\nprice: $$5\n"}}
`,
		"secrets/token": "t",
	},
	"several places": {
		"docker-compose.yml": `
include:
  - {path: line/compose.yml, env_file: line/1.env}
  - path: [edge/compose.yml, edge/gpu.yml]
services:
  hub: {image: "vendor/hub:${VERSION}", hostname: "hub-${LINE:-0}", volumes: ["${DATA:-./data}:/data"], env_file: [{path: hub.env, required: false}]}
`,
		".env":              "VERSION=4\n",
		"line/compose.yml":  "services: {plc: {image: 'vendor/plc:${VERSION}', environment: ['LINE=${LINE}', 'ADDRESS=${ADDRESS}'], volumes: ['${PWD}/shared:/shared:ro']}}\n",
		"line/1.env":        "LINE=1\nADDRESS=10.0.0.${LINE}\n",
		"edge/compose.yml":  "services: {edge: {image: 'vendor/edge:1', volumes: ['./models:/models:ro'], command: 'run --model ${MODEL:-a b}'}}\n",
		"edge/gpu.yml":      "services: {edge: {command: !override ['run', '--gpu=${GPU:-none}'], environment: {GPU: '${GPU:-all}'}}}\n",
		"edge/models/a.bin": "a",
		"shared/a":          "a",
	},
	"home automation": {
		"docker-compose.yml": `
services:
  hub:
    container_name: hub
    image: "ghcr.io/vendor/hub:stable"
    privileged: true
    network_mode: host
    volumes: ["$HOME/.hub:/config", "/etc/localtime:/etc/localtime:ro", "${MEDIA:-/srv/media}:/media"]
    environment: {PUID: "${PUID:-1000}", PGID: "${PGID:-1000}", NOTHING: , EMPTY: "", OPEN: "${A}${B}"}
  broker: {image: "vendor/mqtt:2", user: "${PUID:-1000}:${PGID:-1000}", ports: ["${MQTT_PORT:-1883}:1883"], configs: [broker], env_file: .env}
configs: {broker: {file: ./mosquitto/mosquitto.conf}}
`,
		".env":                     "PUID=1001\nMQTT_PASSWORD=\"a b$$c\"\nA=\n",
		"mosquitto/mosquitto.conf": "listener 1883",
	},
}

// Of each project a package is made that the lint takes, and that runs what the vendor's files
// run.
func TestVendorProjects(t *testing.T) {
	t.Parallel()
	for name, files := range vendorProjects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, result := packed(t, files, "docker-compose.yml")
			if result.Failed() {
				t.Errorf("the lint refuses it: %v", result.Findings)
			}
			for _, n := range p.Notes {
				if strings.Contains(n.Message, "is no parameter") || strings.Contains(n.Message, "was not") {
					t.Errorf("note %+v", n)
				}
			}
			for _, q := range p.Parameters {
				if q.Name == "NEVER" || q.Name == "HOME" {
					t.Errorf("%s is a parameter", q.Name)
				}
			}
			if diff, err := compared(t, files); err != nil || diff != "" {
				t.Errorf("%v (-vendor +package):\n%s\n%s", err, diff, p.Files["margo.yaml"].Content)
			}
		})
	}
}
