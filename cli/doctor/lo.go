package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/doctor/host"
	"github.com/colonyfleet/colony/lo"
)

// below is an address below a base URL; "" for none.
func below(base, path string) string {
	if base == "" {
		return ""
	}
	return strings.TrimSuffix(base, "/") + path
}

// health is where the API of the CO says how it is; "" where the LO gets what it runs from an address for machines
// alone, which has no API.
func health(o lo.Options) string {
	if strings.HasPrefix(o.CO.HTTP, "https://") && len(o.CO.Enrol) > 0 {
		return ""
	}
	return below(o.CO.HTTP, "/healthz")
}

// backlog looks at what waits for the CO: a running LO says it, of another one the files
// show it.
func backlog(o lo.Options, running func(context.Context) bool) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		dir := filepath.Join(o.StateDir, "journal")
		if !running(ctx) || o.HTTP == "" {
			bytes := host.Size(ctx, dir)
			return []doctor.Finding{judgeBacklog("the journal", bytes, o.JournalBytes, "the LO does not run; some of it the CO may have")}
		}
		b, err := host.Get(ctx, host.URL(o.HTTP, "/status"))
		var s lo.Status
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err != nil {
			return []doctor.Finding{doctor.Warnf("look at the log of the LO", "the LO does not say what waits for the CO: %v", err)}
		}
		return judgeStatus(s, time.Now())
	}
}

// judgeStatus judges what a running LO says of itself.
func judgeStatus(s lo.Status, now time.Time) []doctor.Finding {
	var out []doctor.Finding
	if !s.Uplink.Connected {
		out = append(out, doctor.Warnf("see the check co, and the log of the LO; the site goes on meanwhile", "the LO is not connected to the CO"))
	}
	if ahead := time.Duration(s.COAheadSeconds) * time.Second; ahead > 0 {
		out = append(out, doctor.Warnf("compare both clocks with the right time, and set the wrong one", "the clock of the CO is %s ahead of this machine's: one of the two is wrong", ahead))
	}
	text := fmt.Sprintf("%d events wait for the CO", s.Journal.Depth)
	if s.Journal.OldestUnixMillis > 0 {
		text += fmt.Sprintf(", the oldest for %s", now.Sub(time.UnixMilli(s.Journal.OldestUnixMillis)).Round(time.Second))
	}
	out = append(out, judgeBacklog("the journal", s.Journal.Bytes, s.Journal.MaxBytes, text))
	for _, d := range s.Data {
		out = append(out, judgeBacklog("the queue of data rule "+d.Rule, d.Bytes, d.MaxBytes, fmt.Sprintf("%d messages wait for the CO", d.Queued)))
	}
	if s.DataFault != "" {
		fix := "correct the site.yaml of the site in the deployments repo"
		if s.Problem != "" {
			fix = "first free some space, as the check disk says; where it stays, " + fix
		}
		out = append(out, doctor.Failf(fix, "the data rules are not wholly in force: %s", s.DataFault))
	}
	if len(s.NotEnrolled) > 0 {
		out = append(out, doctor.Warnf("give them a join token (colony site adopt "+string(s.Site)+"), and set lo.enrol and lo.mqtt in their configurations", "%d nodes have no certificate, and are not let in: %s", len(s.NotEnrolled), names(s.NotEnrolled)))
	}
	if len(s.Pending) > 0 {
		out = append(out, doctor.Warnf("compare the key with what colony doctor en says on the gateway, and approve or reject it: colony node pending "+string(s.Site), "%d nodes without a join token wait to be approved: %s", len(s.Pending), names(s.Pending)))
	}
	for _, n := range s.Nodes {
		if n.Problem != "" {
			out = append(out, doctor.Failf("give each gateway its own name: node in the configuration of its agent", "node %s: %s", n.Node, n.Problem))
		}
	}
	return out
}

// names are the first of a list.
func names[T ~string](list []T) string {
	const most = 10
	var out []string
	for _, n := range list[:min(len(list), most)] {
		out = append(out, string(n))
	}
	if len(list) > most {
		out = append(out, "…")
	}
	return strings.Join(out, ", ")
}

// judgeBacklog compares the bytes of a queue with its bound; 0 is no bound.
func judgeBacklog(what string, bytes, bound int64, text string) doctor.Finding {
	text = fmt.Sprintf("%s: %s, %s of %s in use", what, text, host.Bytes(bytes), host.Bytes(bound))
	switch {
	case bound > 0 && bytes > bound/20*19:
		return doctor.Failf("bring the link to the CO back, or raise the bound: old machine data is dropped, and then events are refused", "%s", text)
	case bound > 0 && bytes > bound/2:
		return doctor.Warnf("bring the link to the CO back before the bound is reached", "%s", text)
	}
	return doctor.Okf("%s", text)
}
