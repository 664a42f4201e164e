package dictionary

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// noise returns bytes that cannot be compressed, the same for the same seed.
func noise(seed uint64, n int) []byte {
	src := rand.NewChaCha8([32]byte{byte(seed)})
	b := make([]byte, n)
	_, _ = src.Read(b)
	return b
}

// TestDifference wants the cost of a change to be that of the change: the content around it cannot be compressed.
func TestDifference(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		size, at int
		most     int
	}{
		"the begin":         {20_000, 0, 200},
		"the middle":        {20_000, 10_000, 200},
		"the end":           {20_000, 19_900, 200},
		"of the fast way":   {128 << 10, 70_000, 300},
		"of a large state":  {1_000_000, 3, 400},
		"of the largest":    {protocol.MaxMessage, protocol.MaxMessage / 2, 1200},
		"of a small one":    {3000, 100, 200},
		"one that is short": {100, 50, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := noise(1, tt.size)
			now := bytes.Clone(old)
			copy(now[tt.at:], noise(2, 32))
			body := Encode(now, old)
			if len(body) == 0 || len(body) > tt.most {
				t.Fatalf("%d bytes for a change of 32 in %d, want 1 to %d", len(body), tt.size, tt.most)
			}
			got, err := Decode(body, old, uint64(len(now)))
			if err != nil || !bytes.Equal(got, now) {
				t.Fatalf("decoded %d bytes: %v", len(got), err)
			}
			if !bytes.Equal(Encode(now, old), body) {
				t.Error("the same difference was encoded in two ways")
			}
		})
	}
}

func TestNoDifference(t *testing.T) {
	t.Parallel()
	if b := Encode(noise(1, 1000), noise(2, 1000)); b != nil {
		t.Errorf("%d bytes where nothing is common, want none", len(b))
	}
	if b := Encode([]byte("a"), nil); b != nil {
		t.Errorf("without a dictionary: %d bytes", len(b))
	}
	if b := Encode([]byte("a"), make([]byte, Limit+1)); b != nil {
		t.Errorf("with a dictionary above the limit: %d bytes", len(b))
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	old := noise(1, 5000)
	now := append(bytes.Clone(old), "more"...)
	body := Encode(now, old)
	for name, tt := range map[string]struct {
		body, dictionary []byte
		limit            uint64
	}{
		"another dictionary": {body, noise(2, 5000), 6000},
		"no dictionary":      {body, nil, 6000},
		"nothing":            {nil, old, 6000},
		"cut in the head":    {body[:20], old, 6000},
		"cut":                {body[:len(body)-1], old, 6000},
		"longer than said":   {body, old, uint64(len(now) - 1)},
		"plain":              {now, old, 6000},
	} {
		if _, err := Decode(tt.body, tt.dictionary, tt.limit); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReference decodes what the program zstd made of the files of testdata by
// "zstd -19 --no-check -D old -c new", with the head of the coding in front.
func TestReference(t *testing.T) {
	t.Parallel()
	read := func(name string) []byte {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	old, now := read("old"), read("new")
	frame, err := hex.DecodeString(strings.TrimSpace(string(read("frame.hex"))))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(old)
	got, err := Decode(append(append(bytes.Clone(magic), sum[:]...), frame...), old, uint64(len(now)))
	if err != nil || !bytes.Equal(got, now) {
		t.Errorf("decoded %q: %v", got, err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	digest := protocol.DigestOf([]byte("old"))
	h := http.Header{}
	Offer(h, digest)
	if got, ok := Offered(h); !ok || got != digest {
		t.Errorf("offered %s, %v; want %s", got, ok, digest)
	}
	Offer(h, "sha256:00")
	if got, ok := Offered(h); !ok || got != digest {
		t.Errorf("what is no digest changed the offer: %s, %v", got, ok)
	}
	value := h.Get(header)
	for name, tt := range map[string]struct {
		accept, available string
		want              bool
	}{
		"among others":      {"gzip, dcz;q=0.5, zstd", value, true},
		"in capitals":       {"DCZ", value, true},
		"not accepted":      {"gzip", value, false},
		"refused":           {"dcz; q=0", value, false},
		"nothing available": {"dcz", "", false},
		"no byte sequence":  {"dcz", strings.Trim(value, ":"), false},
		"too short":         {"dcz", ":AAAA:", false},
		"no base64":         {"dcz", ":" + strings.Repeat("*", 44) + ":", false},
	} {
		if _, ok := Offered(http.Header{"Accept-Encoding": {tt.accept}, "Available-Dictionary": {tt.available}}); ok != tt.want {
			t.Errorf("%s: %v, want %v", name, ok, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	old := noise(1, 2000)
	f.Add(Encode(append(bytes.Clone(old), "more"...), old))
	f.Fuzz(func(t *testing.T, body []byte) {
		if got, err := Decode(body, old, 10_000); err == nil && len(got) > 10_000 {
			t.Errorf("%d bytes, the limit is 10000", len(got))
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	old := noise(1, 20_000)
	now := bytes.Clone(old)
	copy(now[10_000:], noise(2, 300))
	b.ReportAllocs()
	for b.Loop() {
		Encode(now, old)
	}
}
