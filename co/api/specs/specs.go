// Package specs has the route of the API by which sites fetch, by its digest, what they are to run.
package specs

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/dictionary"
)

// A Source has specifications, and the states of sites that are too large for a message, by digest. An error has
// a kind of the protocol.
type Source interface {
	// Spec returns the bytes with a digest; NotFound where there are none.
	Spec(ctx context.Context, digest protocol.Digest) ([]byte, error)
}

type routes struct {
	source Source
	log    *slog.Logger
}

// Register adds the route to h.
func Register(h huma.API, source Source, log *slog.Logger) {
	r := &routes{source, log}
	huma.Get(h, "/api/v1/specs/{digest}", r.get, form.Describe("deployments", "Fetch a compiled specification"), func(o *huma.Operation) {
		o.Description = "Has ranges, and differences to what the client has (RFC 9842): to a request with Available-Dictionary and Accept-Encoding: dcz it answers with what is other, where it knows what the client has."
	})
}

func (r *routes) get(ctx context.Context, in *struct {
	Digest string `path:"digest" doc:"the digest of the specification, as sha256:…"`
},
) (*huma.StreamResponse, error) {
	digest, err := protocol.ParseDigest(in.Digest)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, problem.At("path.digest", err))
	}
	content, err := r.source.Spec(ctx, digest)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		req, w := humago.Unwrap(c)
		h := w.Header()
		h.Set("Content-Type", protocol.ContentType)
		h.Set("Cache-Control", "private, immutable, max-age=31536000")
		h.Set("Vary", dictionary.Vary)
		body, tag := content, string(digest)
		if have, ok := dictionary.Offered(req.Header); ok && req.Header.Get("Range") == "" {
			if old, err := r.source.Spec(ctx, have); err == nil { // else the client has what this CO does not: it gets the whole
				if difference := dictionary.Encode(content, old); difference != nil {
					h.Set("Content-Encoding", dictionary.Coding)
					body, tag = difference, tag+"-"+have.Short()
				}
			}
		}
		h.Set("Etag", `"`+tag+`"`) // another body has another tag (RFC 9110, section 8.8.3.3)
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(body))
	}}, nil
}
