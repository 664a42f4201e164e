package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// secret is what a file of the machine holds that no answer may show.
const secret = "a-secret-of-the-machine"

// A hostile is a client that makes requests from the description of the API, right ones and
// wrong ones.
type hostile struct {
	*rand.Rand
	doc    map[string]any
	secret string // the path of a file
}

// text returns a value for anything that is a text: names that exist and names that cannot.
func (h *hostile) text() string {
	texts := []string{
		"home", "away", "gw-1", "hello", "meter", "1.0.0", "1.1.0", "one", "", " ", ".", "..", "../../etc/passwd", "/", "//", "%", "%00", "a\x00b", "\xff\xfe", "é☃",
		"'; drop table sites; --", "${HOME}", "{{x}}", "-rf", "--upload-pack=touch /tmp/x", "null", "true", "-1", "0", "1", "99999999999999999999", "1e400", "NaN",
		"2026-01-01T00:00:00Z", "-5m", "15m", "sha256:" + strings.Repeat("0", 64), "sha256:zz", strings.Repeat("a", 300), strings.Repeat("a/", 3000),
		h.secret, "file://" + h.secret, filepath.Dir(h.secret), "oci://registry.colony/x:1", "oci://127.0.0.1:1/x:1", "http://127.0.0.1:1/x.git", "ext::sh -c id", "git@h:x.git#ref",
		"#", "+/a", "a,b,c", "a=b", "!a", "eyJhIjoxfQ", "PENDING", "!INSTALLED", "status", "anomaly",
	}
	return texts[h.IntN(len(texts))]
}

func (h *hostile) some(n int) bool { return h.IntN(n) == 0 }

// value makes a value for a schema; now and then one that it does not allow.
func (h *hostile) value(schema map[string]any, depth int) any {
	if ref, ok := schema["$ref"].(string); ok {
		name := ref[strings.LastIndex(ref, "/")+1:]
		resolved, _ := h.doc["components"].(map[string]any)["schemas"].(map[string]any)[name].(map[string]any)
		return h.value(resolved, depth)
	}
	if h.some(12) || depth > 6 {
		return []any{nil, true, -1, 1 << 40, 0.5, "x", []any{}, map[string]any{}, []any{map[string]any{"a": nil}}}[h.IntN(9)]
	}
	if values, ok := schema["enum"].([]any); ok && !h.some(3) {
		return values[h.IntN(len(values))]
	}
	kind, _ := schema["type"].(string)
	if kinds, ok := schema["type"].([]any); ok {
		kind, _ = kinds[h.IntN(len(kinds))].(string)
	}
	switch kind {
	case "object":
		out := map[string]any{}
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if name != "$schema" && !h.some(3) {
				out[name] = h.value(properties[name].(map[string]any), depth+1)
			}
		}
		if more, ok := schema["additionalProperties"].(map[string]any); ok {
			for range h.IntN(3) {
				out[h.text()] = h.value(more, depth+1)
			}
		}
		if h.some(10) {
			out[h.text()] = h.text()
		}
		return out
	case "array":
		items, _ := schema["items"].(map[string]any)
		out := []any{}
		for range h.IntN(4) {
			out = append(out, h.value(items, depth+1))
		}
		return out
	case "integer", "number":
		return []any{0, 1, 2, -1, 1000, 1 << 31, -(1 << 62), 0.5}[h.IntN(8)]
	case "boolean":
		return h.some(2)
	case "null":
		return nil
	default:
		return h.text()
	}
}

// existing are the names of what there is.
var existing = map[string]string{
	"site": "home", "node": "gw-1", "name": "one", "deployment": "one", "id": "hello", "version": "1.0.0", "user": "plc", "digest": "sha256:0",
}

// request makes a request for a route.
func (h *hostile) request(method, path string, op operation) (target string, header map[string]string, body []byte) {
	header, query := map[string]string{}, url.Values{}
	for _, p := range op.Parameters {
		if p.In != "path" && h.some(2) {
			continue
		}
		text := h.text()
		if v := h.value(p.Schema, 0); v != nil && !h.some(3) {
			text = fmt.Sprint(v)
		}
		switch p.In {
		case "path":
			if right, ok := existing[p.Name]; text == "" || ok && h.some(2) {
				text = right
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(text))
		case "query":
			query.Add(p.Name, text)
		case "header":
			header[p.Name] = strings.Map(func(r rune) rune {
				if r < ' ' || r > '~' {
					return '?'
				}
				return r
			}, text)
		}
	}
	if h.some(15) {
		query.Add(h.text(), h.text())
	}
	if op.RequestBody != nil {
		content := op.RequestBody.Content
		for _, kind := range slices.Sorted(maps.Keys(content)) {
			header["Content-Type"] = kind
			schema, _ := content[kind].(map[string]any)["schema"].(map[string]any)
			body, _ = json.Marshal(h.value(schema, 0))
			if text := ""; json.Unmarshal(body, &text) == nil && !strings.Contains(kind, "json") {
				body = []byte(text)
			}
		}
		switch h.IntN(12) {
		case 0:
			body = body[:h.IntN(len(body)+1)]
		case 1:
			body = bytes.Repeat([]byte("["), 20_000)
		case 2:
			if len(body) > 0 {
				body[h.IntN(len(body))] ^= 1 << h.IntN(8)
			}
		}
	}
	target = path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return target, header, body
}

// TestHostileRequests sends requests that are made from the description of the API, most of
// them wrong, to every route: each is answered, none with a fault of the CO, what is refused
// says why, and none shows a file of the machine. COLONY_API_REQUESTS is how many
// requests each route gets.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	each := 40
	if s := os.Getenv("COLONY_API_REQUESTS"); s != "" {
		var err error
		if each, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.deploy(map[string]any{"site": "home", "app": "hello", "version": "1.0.0", "name": "one"})
	file := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(file, []byte("root: "+secret+"\n"+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var doc document
	var whole map[string]any
	description := w.get("/openapi.json").into(http.StatusOK, nil).body
	for _, out := range []any{&doc, &whole} {
		if err := json.Unmarshal(description, out); err != nil {
			t.Fatal(err)
		}
	}
	statuses := map[int]int{}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			h := &hostile{rand.New(rand.NewPCG(1, uint64(len(statuses)))), whole, file}
			for i := range each {
				target, header, body := h.request(method, path, doc.Paths[path][method])
				status := w.attack(i, strings.ToUpper(method), target, header, body, doc.Paths[path][method])
				statuses[status]++
			}
		}
	}
	t.Logf("answers by status: %v", statuses)
	for _, status := range []int{http.StatusOK, http.StatusNotFound, http.StatusUnprocessableEntity} {
		if statuses[status] == 0 {
			t.Errorf("no answer has status %d: the requests are not what they should be: %v", status, statuses)
		}
	}
	w.get("/api/v1/status").into(http.StatusOK, nil)
}

// attack sends one request and checks the answer.
func (w *world) attack(i int, method, target string, header map[string]string, body []byte, op operation) int {
	w.t.Helper()
	call := fmt.Sprintf("%d: %s %.300q %v %.300q", i, method, target, header, body)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.url+target, bytes.NewReader(body))
	if err != nil {
		w.t.Fatalf("%s: %v", call, err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatalf("%s: not answered: %v", call, err)
	}
	defer resp.Body.Close()
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return resp.StatusCode // it goes on for as long as the client wants
	}
	got, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		w.t.Fatalf("%s: the answer ended: %v", call, err)
	}
	away := resp.StatusCode == http.StatusServiceUnavailable && bytes.Contains(got, []byte("is offline")) // which a node that is asked now may be
	if resp.StatusCode >= 500 && !away {
		w.t.Errorf("%s: status %d: %s", call, resp.StatusCode, got)
	}
	if bytes.Contains(got, []byte(secret)) {
		w.t.Errorf("%s: the answer shows a file of the machine: %.300s", call, got)
	}
	for _, s := range internals {
		if bytes.Contains(got, []byte(s)) && !strings.Contains(target, s) && !bytes.Contains(body, []byte(s)) {
			w.t.Errorf("%s: the answer shows an internal (%q): %.300s", call, s, got)
		}
	}
	if resp.StatusCode >= 400 && resp.StatusCode < 500 {
		var p problem
		if err := json.Unmarshal(got, &p); err != nil || p.Status != resp.StatusCode || p.Detail == "" {
			w.t.Errorf("%s: status %d is not explained: %.300s", call, resp.StatusCode, got)
		}
	}
	_, named := op.Responses[strconv.Itoa(resp.StatusCode)]
	_, others := op.Responses["default"]
	// The path of a name such as .. is that of another route (RFC 3986, section 5.2.4).
	elsewhere := resp.StatusCode == http.StatusMethodNotAllowed && resp.Request.URL.Path != req.URL.Path
	if !named && !others && !elsewhere {
		w.t.Errorf("%s: status %d is not in the description", call, resp.StatusCode)
	}
	return resp.StatusCode
}
