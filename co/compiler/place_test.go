package compiler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is wrong with an item of a list has the line of the item, and hides nothing of the others.
func TestItemsOfLists(t *testing.T) {
	t.Parallel()
	_, _, err := CheckArchive("web", composeArchive(t, `services:
  web:
    image: i
    volumes:
      - gone:/a
      - /b:/b:odd
      - data:/c
      - lost:/d
      - /e:/
    ports:
      - "99999:1"
      - "80-90:5"
      - {target: 80, published: "6x"}
      - "7070:70"
    cap_add:
      - NET_ADMIN
      - NET_RAWW
    environment:
      - A=1
      - =x
    extra_hosts:
      - "a:1.2.3.4"
      - "b:zzz"
    dns:
      - 1.1.1.1
      - nowhere
    sysctls:
      - net.core.somaxconn
    tmpfs:
      - /run
      - /dev
  other:
    image: i
    ports:
      - "5050:50"
      - "7070:71"
volumes: {data: }
`, nil), nil)
	want := strings.Split(`line 5: services.web.volumes[0]: the volume "gone" is undefined: list it under volumes; there are data
line 6: services.web.volumes[1]: the option "odd" is not supported; ro, rw, nocopy, rro, rslave, z, Z, cached, delegated, consistent are
line 8: services.web.volumes[3]: the volume "lost" is undefined: list it under volumes; there are data
line 9: services.web.volumes: target /: it is the root of the container, which the image fills: mount at a directory below it
line 11: services.web.ports[0]: "99999:1": want [address:][port of the node:]<port of the container>[/udp]: invalid hostPort: 99999
line 12: services.web.ports: port "80-90" of the node: want one number from 1 to 65535
line 13: services.web.ports: port "6x" of the node: want one number from 1 to 65535
line 14: services.web.ports[3]: port 7070 of the node is published twice in this deployment: services.other.ports[1] has it; publish another one
line 17: services.web.cap_add: "NET_RAWW" is no capability of Linux: want a name such as NET_RAW, or ALL
line 20: services.web.environment: "" cannot be an environment variable: want a name that is not empty and without =, and a value without a zero byte
line 23: services.web.extra_hosts: "b=zzz": want name=address with an IP address, without a zone, or host-gateway
line 26: services.web.dns: "nowhere": want an IP address, without a zone
line 27: services.web.sysctls.net.core.somaxconn: it has no value, with which nothing is set: write one, as in net.core.somaxconn: 1, or leave it out
line 31: services.web.tmpfs: target /dev: the node puts the devices of the container there: mount at a directory below it, such as /dev/shm, or bind /dev of the node`, "\n")
	_, got, _ := strings.Cut(fmt.Sprint(err), "compose.yaml:\n")
	if diff := cmp.Diff(want, strings.Split(got, "\n")); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// What Linux, the DNS or a directory of the node is too small for is refused before there is a
// deployment.
func TestSizes(t *testing.T) {
	t.Parallel()
	service := func(name, more string) string { return "services:\n  " + name + ":\n    image: i\n" + more }
	for name, c := range map[string]struct{ compose, want string }{
		"a label of a service":    {service(strings.Repeat("a", 64), ""), "line 2: services." + strings.Repeat("a", 64) + ".networks: the service is "},
		"a service":               {service(strings.Repeat("a.", 32)+"a", ""), ".hostname: the container calls itself "},
		"a service with hostname": {service(strings.Repeat("a.", 32)+"a", "    hostname: short\n"), ""},
		"a service of the node":   {service(strings.Repeat("a.", 32)+"a", "    network_mode: host\n"), ""},
		"the longest service":     {service(strings.Repeat("a", 63), ""), ""},
		"replicas":                {service(strings.Repeat("a", 62), "    scale: 2\n"), ".networks: the service is "},
		"an alias":                {service("a", "    networks: {default: {aliases: ["+strings.Repeat("b", 64)+"]}}\n"), "line 4: services.a.networks.default.aliases: "},
		"a variable":              {service("a", "    environment:\n      - A=1\n      - B="+strings.Repeat("x", 128<<10)+"\n"), "line 6: services.a.environment: B has 131074 bytes with its name, Linux takes 131071"},
		"the longest variable":    {service("a", "    environment: [B="+strings.Repeat("x", 128<<10-3)+"]\n"), ""},
		"a word of the command":   {service("a", "    command: [sh, -c, "+strings.Repeat("x", 128<<10)+"]\n"), "line 4: services.a.command: the word 3 has 131072 bytes"},
		"a check":                 {service("a", "    healthcheck: {test: "+strings.Repeat("x", 128<<10)+"}\n"), "line 4: services.a.healthcheck.test: it has 131072 bytes"},
		"a volume":                {service("a", "    volumes: ['"+strings.Repeat("v", 250)+":/v']\n") + "volumes: {" + strings.Repeat("v", 250) + ": }\n", "line 4: services.a.volumes: /v: the name of the volume has 254 bytes"},
		"a relative bind":         {service("a", "    volumes: ['./"+strings.Repeat("v", 100)+"/"+strings.Repeat("w", 150)+":/v']\n"), "line 4: services.a.volumes: /v: the name of the volume has "},
		"a network":               {service("a", "    networks: ["+strings.Repeat("n", 300)+"]\n") + "networks: {" + strings.Repeat("n", 300) + ": }\n", ""},
	} {
		_, _, err := CheckArchive("web", composeArchive(t, c.compose, nil), nil)
		if text := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(text, c.want) && err != nil {
			t.Errorf("%s: %.300s, want %q", name, text, c.want)
		}
	}
}
