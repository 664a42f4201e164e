package oidc

import (
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	// mostKeys and mostBody bound what is taken of a provider.
	mostKeys = 64
	mostBody = 1 << 20
	// readWait bounds one reading of the keys.
	readWait = 10 * time.Second
	// rereadDelay is how soon after a reading the keys are read once more for a token with an unknown key.
	rereadDelay = 10 * time.Second
	// keysHold is how long keys count that cannot be read again.
	keysHold = 24 * time.Hour
)

// algorithms are those that are accepted: by none of them can a signature be made with a public key
// alone.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// A key is one that a provider publishes.
type key struct {
	jose.JSONWebKey
	thumbprint string // RFC 7638
}

// fits reports whether a signature may be by the key.
func (k key) fits(h jose.Header) bool {
	return (h.KeyID == "" || h.KeyID == k.KeyID) && (k.Algorithm == "" || k.Algorithm == h.Algorithm)
}

// keys are those that a provider publishes. Its methods may be called concurrently.
type keys struct {
	issuer string
	client *http.Client

	turn    chan struct{} // holds one value while a goroutine reads
	waiting atomic.Int32  // how many goroutines wait for that

	mu    sync.RWMutex // protects what follows
	list  []key
	at    time.Time // of the last reading that succeeded; zero: none did
	tried time.Time // when the last reading ended
	err   error     // of the last reading
}

// state returns the keys that count, and the error of the last reading.
func (k *keys) state() ([]key, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if time.Since(k.at) > keysHold {
		return nil, k.err
	}
	return k.list, k.err
}

// has reports whether a key counts.
func (k *keys) has(thumbprint string) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if time.Since(k.at) > keysHold {
		return false
	}
	for i := range k.list {
		if k.list[i].thumbprint == thumbprint {
			return true
		}
	}
	return false
}

// mostWaiting bounds the requests that wait for a reading of the keys: a provider that does not answer, and tokens with unknown
// keys, would otherwise hold a connection each.
const mostWaiting = 32

// readSoon reads the keys unless they were read just now. If another goroutine reads them, it waits for that, as long as
// the caller does.
func (k *keys) readSoon(ctx context.Context, apart time.Duration) {
	if !k.due(apart) {
		return
	}
	if k.waiting.Add(1) > mostWaiting {
		k.waiting.Add(-1)
		return
	}
	defer k.waiting.Add(-1)
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-k.turn }()
	if k.due(apart) { // no other goroutine has read meanwhile
		_ = k.readInTurn(context.WithoutCancel(ctx)) // the caller may give up; state has the error
	}
}

// due reports whether the last reading ended so long ago.
func (k *keys) due(apart time.Duration) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return time.Since(k.tried) >= apart
}

// read reads the keys.
func (k *keys) read(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-k.turn }()
	return k.readInTurn(ctx)
}

// readInTurn is read, for callers whose turn it is.
func (k *keys) readInTurn(ctx context.Context) error {
	began := time.Now()
	list, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.err = time.Now(), err
	if err == nil {
		k.list, k.at = list, began
	}
	return err
}

// fetch asks the provider where its keys are, and for them.
func (k *keys) fetch(ctx context.Context) ([]key, error) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, k.client), k.issuer)
	if err != nil {
		return nil, fmt.Errorf("discovery of the provider: %w", err)
	}
	var said struct {
		URL string `json:"jwks_uri"`
	}
	if err := provider.Claims(&said); err != nil {
		return nil, fmt.Errorf("discovery of the provider: %w", err)
	}
	if err := checkURL(said.URL); err != nil {
		return nil, fmt.Errorf("the provider says that its keys are at %q: %w", said.URL, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, said.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("keys of the provider: %w", err)
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("keys of the provider: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("keys of the provider: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("keys of the provider: %s answers %s", said.URL, resp.Status)
	}
	return parseKeys(body)
}

// parseKeys reads a set of keys (RFC 7517, section 5). Those of which nothing is known, or that are not for signatures, are left out.
func parseKeys(body []byte) ([]key, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("keys of the provider: %w", err)
	}
	var list []key
	for _, raw := range set.Keys {
		var k key
		if json.Unmarshal(raw, &k.JSONWebKey) != nil || !k.Valid() || !k.IsPublic() || k.Use != "" && k.Use != "sig" {
			continue
		}
		sum, err := k.Thumbprint(crypto.SHA256)
		if err != nil {
			continue
		}
		k.thumbprint = base64.RawURLEncoding.EncodeToString(sum)
		if list = append(list, k); len(list) > mostKeys {
			return nil, fmt.Errorf("the provider has more than %d keys", mostKeys)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("the provider has no key for signatures")
	}
	return list, nil
}

// An attempt verifies the signature of one token; it is the oidc.KeySet of that.
type attempt struct {
	keys  *keys
	apart time.Duration
	// Set where the signature is right.
	header     jose.Header
	thumbprint string
}

var errUnknownKey = errors.New("no key of the provider has made the signature")

// VerifySignature returns the content of a token that one of the keys has signed.
func (a *attempt) VerifySignature(ctx context.Context, text string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(text, algorithms)
	if err != nil {
		return nil, err
	}
	a.header = signed.Signatures[0].Header
	known := false
	try := func() []byte {
		list, _ := a.keys.state()
		for _, k := range list {
			if !k.fits(a.header) {
				continue
			}
			known = known || a.header.KeyID != ""
			if payload, err := signed.Verify(k.JSONWebKey); err == nil {
				a.thumbprint = k.thumbprint
				return payload
			}
		}
		return nil
	}
	payload := try()
	if payload == nil && !known {
		a.keys.readSoon(ctx, a.apart)
		payload = try()
	}
	if payload == nil {
		return nil, errUnknownKey
	}
	return payload, nil
}

// limited bounds the answers that a client reads.
type limited struct{ next http.RoundTripper }

// RoundTrip is that of next.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, mostBody)
	}
	return resp, err
}
