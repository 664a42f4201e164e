package compiler

import (
	"slices"
	"strings"
	"testing"
)

// As with Compose, .env beside compose.yaml gives defaults, which what is set from
// outside overrules.
func TestDotEnv(t *testing.T) {
	t.Parallel()
	const compose = `services:
  web:
    image: "i:${TAG}"
    command: ["${COMPOSE_PROJECT_NAME}"]
    environment: [TAG, "PASSWORD=${PASSWORD:?}", "TWICE=${TWICE}"]
    env_file: more.env
`
	files := map[string]string{".env": "TAG=1\nPASSWORD=secret\nTWICE=${TAG}-${TAG}\n", "more.env": "FROM=${PASSWORD}\n"}
	got, err := compileOne(t, compose, files, map[string]string{"TAG": "2"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"FROM=secret", "PASSWORD=secret", "TAG=2", "TWICE=2-2"}
	if c := got[0]; !slices.Equal(c.Env, want) || !strings.HasPrefix(c.Image, "i:2@") || c.Command[0] != "web" {
		t.Errorf("environment %q, image %s, command %q; want %q", c.Env, c.Image, c.Command, want)
	}
}

func TestVariablesThatNobodySets(t *testing.T) {
	t.Parallel()
	const compose = `services:
  db:
    image: i
    environment:
      POSTGRES_PASSWORD: ${POSTGRES_PASSWORD}
      EMPTY: ${EMPTY:-}
      DEFAULT: ${NOT_SET:-$NOR_THIS}
      ESCAPED: $${PRICE} and $$PRICE
      GIVEN: ${GIVEN}
      PASSED:
  app:
    image: i
    environment: [PLAIN, "KEY=value"]
`
	_, warnings, err := CheckArchive("web", composeArchive(t, compose, nil), open("GIVEN"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"line 13: services.app.environment: PLAIN is left out",
		"line 7: services.db.environment.DEFAULT: NOR_THIS is empty",
		"line 10: services.db.environment.PASSED: PASSED is left out",
		"line 5: services.db.environment.POSTGRES_PASSWORD: POSTGRES_PASSWORD is empty: no parameter of the application sets it, nor does .env",
	}
	if len(warnings) != len(want) {
		t.Fatalf("warnings %q, want %q", warnings, want)
	}
	for _, w := range want {
		if !slices.ContainsFunc(warnings, func(got string) bool { return strings.HasPrefix(got, w) }) {
			t.Errorf("warnings %q, want %q", warnings, w)
		}
	}
	const required = "services:\n  db:\n    image: i\n    environment: {A: '${SECRET:?say it}'}\n"
	for _, variables := range [][]string{nil, {"OTHER"}} {
		_, _, err = CheckArchive("web", composeArchive(t, required, nil), open(variables...))
		if err == nil || !strings.Contains(err.Error(), "line 4: services.db.environment.A: required variable SECRET is missing a value: say it: set it by a parameter") {
			t.Errorf("a required variable: %v", err)
		}
	}
	if _, _, err = CheckArchive("web", composeArchive(t, required, nil), open("SECRET")); err != nil {
		t.Errorf("a required variable that a parameter sets: %v", err)
	}
	if _, _, err = CheckArchive("web", composeArchive(t, required, nil), open("ENV.A")); err == nil || !strings.Contains(err.Error(), `pointer "ENV.A": for compose it is the name`) {
		t.Errorf("a pointer that is no name of a variable: %v", err)
	}
}

// What an import can know, it says; what depends on a parameter is left to the
// deployment, wherever it stands.
func TestImportJudgesWhatNoParameterSets(t *testing.T) {
	t.Parallel()
	const frame = "services:\n  b: {image: i, healthcheck: {test: a}}\n  web:\n    "
	for service, value := range map[string]string{
		"image: '${V}'":                                                                      "i:1",
		"image: i\n    command: '${V} serve'":                                                "web",
		"image: i\n    ports: ['${V}:80', '81:${V}', '82:82']":                               "80",
		"image: i\n    ports: [{target: 80, published: '${V}'}]":                             "80",
		"image: i\n    network_mode: '${V}'":                                                 "host",
		"image: i\n    restart: '${V}'":                                                      "always",
		"image: i\n    cap_add: ['${V}']":                                                    "NET_RAW",
		"image: i\n    stop_signal: '${V}'":                                                  "SIGINT",
		"image: i\n    stop_grace_period: '${V}'":                                            "10s",
		"image: i\n    volumes: ['${V}:/data', '/a:${V}/b']":                                 "/srv",
		"image: i\n    tmpfs: ['/t:size=${V}']":                                              "1m",
		"image: i\n    devices: ['${V}:/dev/ttyUSB0']":                                       "/dev/ttyACM0",
		"image: i\n    mem_limit: '${V}'":                                                    "64m",
		"image: i\n    deploy: {resources: {limits: {memory: '${V}'}}, replicas: '${R:-1}'}": "64m",
		"image: i\n    read_only: '${V}'":                                                    "true",
		"image: i\n    extra_hosts: ['printer=${V}']":                                        "10.0.0.1",
		"image: i\n    extra_hosts: {printer: '${V}'}":                                       "10.0.0.1",
		"image: i\n    sysctls: {net.core.somaxconn: '${V}'}":                                "1024",
		"image: i\n    environment: {A: '${V}', B: '${V:-x}'}":                               "any: thing",
		"image: i\n    x-colony-health: {port: '${V}', http: /}":                             "8080",
		"image: i\n    healthcheck: {test: [CMD, x, '${V}'], interval: '${V}'}":              "5s",
		"image: i\n    depends_on: {b: {condition: '${V}'}}":                                 "service_healthy",
		"image: i\n    secrets: [s]\nsecrets: {s: {file: '${V}'}}":                           "a.env",
		"image: i\n    env_file: ['${V}']":                                                   "a.env",
		"image: i\n    working_dir: '${V}'":                                                  "/srv",
		"image: i\n    hostname: '${V}-a'":                                                   "h",
		"image: i\n    deploy: {restart_policy: {condition: '${V}', max_attempts: 3}}":       "on-failure",
		"image: i\n    user: '${V}:${V}'":                                                    "1000",
	} {
		files := map[string]string{"a.env": "A=1"}
		if _, err := compileOne(t, frame+service+"\n", files, map[string]string{"V": value}); err != nil {
			t.Errorf("%s with %s: %v", service, value, err)
		}
		if _, _, err := CheckArchive("web", composeArchive(t, frame+service+"\n", files), open("V")); err != nil {
			t.Errorf("import of %s: %v", service, err)
		}
	}
	for service, want := range map[string]string{
		"volumes: ['./a.conf:/conf', '${V}:/data']":                 `line 5: services.web.volumes: /conf: bind source "./a.conf"`,
		"ports: [{target: 0, published: '80'}, '${V}:81']":          "line 5: services.web.ports: container port 0",
		"sysctls: {net.core.somaxconn: '${V}', vm.swappiness: '1'}": "line 5: services.web.sysctls.vm.swappiness: the container has no such parameter",

		"working_dir: app":                              "line 5: services.web.working_dir",
		"cap_drop: [NET_RAWW]":                          `line 5: services.web.cap_drop: "NET_RAWW" is no capability`,
		"extra_hosts: ['a:gateway']":                    `line 5: services.web.extra_hosts`,
		"restart: '${POLICY:-sometimes}'":               `line 5: services.web.restart: "sometimes"`,
		"depends_on: {b: {condition: service_healthy}}": "services.web.depends_on.b: service_healthy, but the healthcheck of b is disabled",
		"ports: ['80:80', '127.0.0.1:80:81']":           "port 80 of the node is published twice",
	} {
		compose := strings.Replace(frame, "healthcheck: {test: a}", "healthcheck: {disable: true}", 1) + "image: i\n    " + service + "\nnetworks: {other: {}}\n"
		_, _, err := CheckArchive("web", composeArchive(t, compose, nil), open("V"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("import of %s: %v, want %q", service, err, want)
		}
	}
}
