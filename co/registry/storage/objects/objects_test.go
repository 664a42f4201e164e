package objects_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/co/registry/storage/objects"
	"github.com/colonyfleet/colony/co/registry/storage/storagetest"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/s3test"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bucket opens a location with locks of a database.
func bucket(t *testing.T, at objects.Location, url string) *objects.Bucket {
	t.Helper()
	d, err := pgdb.Open(t.Context(), url, pgdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	b, err := objects.Open(at, d.Lock("registry", time.Minute), d.Lock("cleaning", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestContract(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	server.Bucket("registry")
	storagetest.Exercise(t, func(t *testing.T) (a, b storage.Storage) {
		at := objects.Location{Endpoint: server.URL, Bucket: "registry", Prefix: strings.ReplaceAll(t.Name(), "_", "-"), CredentialFile: server.CredentialFile}
		url := pgtest.New(t)
		return bucket(t, at, url), bucket(t, at, url)
	})
}

// TestTrouble says what is wrong with a location, and what to do about it.
func TestTrouble(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	server.Bucket("registry")
	good := objects.Location{Endpoint: server.URL, Bucket: "registry", CredentialFile: server.CredentialFile}
	url := pgtest.New(t)
	if err := objects.Check(good); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for want, change := range map[string]func(*objects.Location){
		`there is no bucket "none": create it`:    func(l *objects.Location) { l.Bucket = "none" },
		"are refused: write those of a user":      func(l *objects.Location) { l.CredentialFile = s3test.Credentials(t, "nobody", "x") },
		"are refused: write those of a user that": func(l *objects.Location) { l.CredentialFile = s3test.Credentials(t, "colony", "wrong") },
		"it does not answer: check the address":   func(l *objects.Location) { l.Endpoint = "http://127.0.0.1:1" },
	} {
		at := good
		change(&at)
		b := bucket(t, at, url)
		_, listErr := b.Unfinished()
		for _, err := range []error{objects.Check(at), listErr} {
			if err == nil || !strings.Contains(err.Error(), want) || protocol.KindOf(err) != protocol.Unavailable {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
	for want, l := range map[string]objects.Location{
		"x.endpoint":       {Endpoint: "ftp://host", Bucket: "b", CredentialFile: "f"},
		"x.bucket":         {Endpoint: "https://host", CredentialFile: "f"},
		"x.credentialFile": {Endpoint: "https://host", Bucket: "b"},
	} {
		if err := l.Validate("x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
	}
	if err := errors.Join(good.Validate("x"), objects.Location{}.Validate("x")); err != nil {
		t.Error(err)
	}
}
