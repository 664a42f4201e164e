package semantics

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// A check says whether a deployment behaves as its file says.
type check func(d *deployed) error

// says wants a text in what the toolbox prints in the container "a".
func says(want string, args ...string) check { return saysIn("a", want, args...) }

// runs checks the arguments of the container's program, all of them.
func runs(want ...string) check {
	return func(d *deployed) error {
		out, err := d.exec("a", "cat", "/proc/1/cmdline")
		if line := strings.Join(want, "\x00") + "\x00"; err == nil && out != line {
			err = fmt.Errorf("the container runs %q, want %q", out, line)
		}
		return err
	}
}

func saysIn(service, want string, args ...string) check {
	return func(d *deployed) error {
		out, err := d.exec(service, args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("%q in %s prints %q, want %q in it", args, service, out, want)
		}
		return err
	}
}

// fails wants the toolbox to fail in a container that runs.
func fails(args ...string) check {
	return func(d *deployed) error {
		if _, err := d.exec("a", "id"); err != nil {
			return err
		}
		if out, err := d.exec("a", args...); err == nil {
			return fmt.Errorf("%q works: %q", args, out)
		}
		return nil
	}
}

// all wants every check to pass.
func all(list ...check) check {
	return func(d *deployed) error {
		for _, c := range list {
			if err := c(d); err != nil {
				return err
			}
		}
		return nil
	}
}

func installed(d *deployed) error { return d.installed() }

// failing wants the deployment to fail for a reason.
func failing(code protocol.Code, text string) check {
	return func(d *deployed) error { return d.failed(code, text) }
}

// health wants the agent to say this state of the container "a".
func health(want string) check {
	return func(d *deployed) error {
		if d.peer != nil {
			return errNotCompared
		}
		for _, c := range d.report().Components {
			if c.Container == "a" && c.State == want {
				return nil
			}
		}
		return fmt.Errorf("components %+v, want a to be %s", d.report().Components, want)
	}
}

// status wants something of what the engine says of "a".
func status(what string, ok func(engine.Status) bool) check {
	return func(d *deployed) error {
		st, err := d.status("a")
		if err == nil && !ok(st) {
			err = fmt.Errorf("a is %+v, want %s", st, what)
		}
		return err
	}
}

// lines wants a file of "a" to have so many lines.
func lines(path string, n int) check {
	return func(d *deployed) error {
		out, err := d.exec("a", "cat", path)
		if got := strings.Count(out, "line"); err == nil && got < n {
			err = fmt.Errorf("%s has %d lines, want %d", path, got, n)
		}
		return err
	}
}

// cgroup wants a limit in the control group that "a" sees, of version 2 or 1.
func cgroup(v2, want2, v1, want1 string) check {
	return func(d *deployed) error {
		file, want := v2, want2
		out, err := d.exec("a", "cat", filepath.Join("/sys/fs/cgroup", v2))
		if err != nil {
			file, want = v1, want1
			out, err = d.exec("a", "cat", filepath.Join("/sys/fs/cgroup", v1))
		}
		if err == nil && out != want {
			err = fmt.Errorf("%s is %q, want %q", file, out, want)
		}
		return err
	}
}

// fetched wants a text from a port of the node.
func fetched(host string, port int, want string) check {
	return func(*deployed) error {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
		r, err := c.Get(fmt.Sprintf("http://%s/", net.JoinHostPort(host, fmt.Sprint(port))))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err == nil && string(b) != want {
			err = fmt.Errorf("%s:%d answers %q, want %q", host, port, b, want)
		}
		return err
	}
}

// closed wants nothing to answer at a port of the node.
func closed(host string, port int) check {
	return func(d *deployed) error {
		if err := fetched(host, port, "")(d); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("%s:%d: %v, want the connection refused", host, port, err)
		}
		return nil
	}
}

// echoed wants a packet back from a UDP port of the node.
func echoed(host string, port int) check {
	return func(*deployed) error {
		c, err := net.Dial("udp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	}
}

// silent wants the packets to a UDP port of the node to be refused.
func silent(host string, port int) check {
	return func(d *deployed) error {
		if err := echoed(host, port)(d); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("%s:%d: %v, want packets refused", host, port, err)
		}
		return nil
	}
}

// stopped wants "a" to end with this code when it is asked to stop.
func stopped(code int32) check {
	return func(d *deployed) error {
		if err := d.installed(); err != nil {
			return err
		}
		if err := d.halt("a"); err != nil {
			return err
		}
		return status(fmt.Sprintf("exit code %d", code), func(s engine.Status) bool { return s.State == engine.Exited && s.ExitCode == code })(d)
	}
}

// annotated wants an annotation of the container of "a" in containerd.
func annotated(name, want string) check {
	return func(d *deployed) error {
		if d.peer != nil {
			return errNotCompared // it is in the terms of containerd
		}
		ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), d.opts.Namespace), patience)
		defer cancel()
		c, err := client.New(d.opts.Address)
		if err != nil {
			return err
		}
		defer c.Close()
		list, err := c.Containers(ctx, fmt.Sprintf(`labels."colony.deployment"==%q,labels."colony.name"==a`, d.name))
		if err != nil || len(list) != 1 {
			return fmt.Errorf("%d containers in containerd (%v)", len(list), err)
		}
		spec, err := list[0].Spec(ctx)
		if err == nil && spec.Annotations[name] != want {
			err = fmt.Errorf("annotations %v, want %s=%s", spec.Annotations, name, want)
		}
		return err
	}
}

// ofTheNode wants a namespace of "a" to be the node's.
func ofTheNode(namespace string) check {
	return func(d *deployed) error {
		own, err := os.Readlink("/proc/self/ns/" + namespace)
		if err != nil {
			return err
		}
		return says(own, "readlink", "/proc/self/ns/"+namespace)(d)
	}
}

// logged wants a text in the log of "a".
func logged(want string) check {
	return func(d *deployed) error {
		b, err := d.log("a")
		if err == nil && !strings.Contains(string(b), want) {
			err = fmt.Errorf("the log says %q, want %q in it", b, want)
		}
		return err
	}
}

// containers wants so many containers in the deployment.
func containers(n int) check {
	return func(d *deployed) error {
		if d.peer != nil {
			if got, err := d.peer.containers(); err != nil || got != n {
				return fmt.Errorf("%d containers, want %d (%v)", got, n, err)
			}
			return nil
		}
		if got := len(d.spec.Components[0].Containers); got != n {
			return fmt.Errorf("%d containers, want %d", got, n)
		}
		return d.installed()
	}
}

// after wants "a" to have started when "b" had ended.
func after(d *deployed) error {
	a, err := d.status("a")
	if err != nil {
		return err
	}
	b, err := d.status("b")
	if err == nil && (b.State != engine.Exited || a.StartedAt.Before(b.ExitedAt)) {
		err = fmt.Errorf("a started at %s, b is %s since %s", a.StartedAt, b.State, b.ExitedAt)
	}
	return err
}

// chosenPort wants a text from the port of the node that "a" is reported to have.
func chosenPort(want string) check {
	return func(d *deployed) error {
		ports, err := d.ports("a")
		if err != nil || len(ports) != 1 {
			return fmt.Errorf("ports %+v (%v), want the one that was chosen", ports, err)
		}
		return fetched("127.0.0.1", int(ports[0].Host), want)(d)
	}
}

// answers wants DNS in "a" to give so many addresses of a name.
func answers(name string, n int) check {
	return func(d *deployed) error {
		out, err := d.exec("a", "dig", name, "1")
		if got := strings.Count(out, " 10."); err == nil && got != n {
			err = fmt.Errorf("%s has %d addresses: %q, want %d", name, got, out, n)
		}
		return err
	}
}

// apart wants one container not to reach another at its address.
func apart(from, to string) check {
	return func(d *deployed) error {
		st, err := d.status(to)
		if err != nil {
			return err
		}
		if out, err := d.exec(from, "get", "http://"+st.IP+"/"); err == nil {
			return fmt.Errorf("%s reaches %s: %q", from, to, out)
		}
		return nil
	}
}

// noWayOut wants "a" to have no default route.
func noWayOut(d *deployed) error {
	out, err := d.exec("a", "cat", "/proc/net/route")
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "00000000" {
			return fmt.Errorf("a has a default route: %s", line)
		}
	}
	return err
}

// restarted wants "a" to be reported with so many restarts, or more.
func restarted(n uint32) check {
	return func(d *deployed) error {
		got, err := d.restarts("a")
		if err == nil && got < n {
			err = fmt.Errorf("%d restarts, want %d", got, n)
		}
		return err
	}
}

// underAppArmor holds where the kernel has AppArmor and the container is under the profile that
// it brought, or where it has none and the node says so.
func underAppArmor(d *deployed) error {
	if _, err := os.Stat("/sys/kernel/security/apparmor/profiles"); err != nil {
		return failing(protocol.Incompatible, "the node's kernel has no AppArmor")(d)
	}
	return says("colony-", "cat", "/proc/1/attr/current")(d)
}
