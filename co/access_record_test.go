package co_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// TestTokenEndsPush has a push to the registry under way whose token is revoked: it ends, though its client neither
// sends nor goes.
func TestTokenEndsPush(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	id, text := b.tokenOf("ci", access.Operator, time.Hour)
	body, write := io.Pipe()
	defer write.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.co.HTTPAddr()+"/v2/a/blobs/uploads/?digest=sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", body)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("colony", text)
	ended := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			err = resp.Body.Close()
			if resp.StatusCode < 300 {
				t.Errorf("the push goes through: %s", resp.Status)
			}
		}
		ended <- err
	}()
	if _, err := write.Write(make([]byte, 32<<20)); err != nil { // more than sockets hold: the CO reads
		t.Fatal(err)
	}
	b.revoke(id, admin)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the push goes on")
	}
}

// TestTokenPages lists more tokens than a page holds.
func TestTokenPages(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ann", access.Admin, time.Hour)
	db, err := pgdb.Open(t.Context(), b.options.DatabaseURL, pgdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(t.Context(), `insert into access_tokens (id, name, role, created_at, created_by, expires_at)
		select 'T' || n, 'ci', 'operator', now() - interval '1 hour', 'ann', now() + interval '1 hour' from generate_series(1, 2500) n`); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for cursor, pages := "", 1; ; pages++ {
		status, said := b.ask(http.MethodGet, "/api/v1/tokens?limit=1000&cursor="+cursor, admin, "")
		var list struct {
			Items []access.Token
			Next  string
		}
		if err := json.Unmarshal([]byte(said), &list); err != nil || status != http.StatusOK || len(list.Items) > 1000 || pages > 3 {
			t.Fatalf("page %d: %d, %d items, %v", pages, status, len(list.Items), err)
		}
		for _, v := range list.Items {
			seen[v.ID] = true
		}
		if cursor = list.Next; cursor == "" {
			break
		}
	}
	if len(seen) != 2501 {
		t.Errorf("%d tokens, want 2501", len(seen))
	}
	for _, cursor := range []string{"x", "1", "99999999999999999999.a", "9223372036854775807.a"} {
		if status, said := b.ask(http.MethodGet, "/api/v1/tokens?cursor="+cursor, admin, ""); status != http.StatusUnprocessableEntity {
			t.Errorf("cursor %s: %d %s", cursor, status, said)
		}
	}
	for _, tt := range []struct {
		method string
		want   int
	}{{http.MethodHead, http.StatusOK}, {http.MethodPatch, http.StatusMethodNotAllowed}} {
		if status, said := b.ask(tt.method, "/api/v1/broker/clients", admin, ""); status != tt.want {
			t.Errorf("%s: %d %s, want %d", tt.method, status, said, tt.want)
		}
	}
}

// TestUsesSurviveStop uses a token and stops the CO at once; the record has the use. A CO with another key says that it
// refuses the tokens in the record.
func TestUsesSurviveStop(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) { o.Access.Required = true })
	id, text := b.tokenOf("ann", access.Admin, time.Hour)
	if status, said := b.ask(http.MethodGet, "/api/v1/principal", text, ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, said)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.co.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	db, err := pgdb.Open(t.Context(), b.options.DatabaseURL, pgdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var used bool
	if err := db.QueryRow(t.Context(), `select used_at is not null from access_tokens where id = $1`, id).Scan(&used); err != nil || !used {
		t.Errorf("the use is recorded: %v, %v", used, err)
	}
	if err := os.Remove(filepath.Join(b.options.StateDir, "access", "token.key")); err != nil {
		t.Fatal(err)
	}
	o := b.options
	file := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	startCO(t, o)
	if said, err := os.ReadFile(file); err != nil || !strings.Contains(string(said), "another key signed tokens") {
		t.Errorf("the log does not say so: %s, %v", said, err)
	}
}
