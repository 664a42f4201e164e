// Package security describes, in the API's own description, what its operations need.
package security

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
)

// Describe adds to each operation of a description what it needs where tokens are wanted, and which tokens: signIn is how
// people sign in with an OpenID provider, nil where they do not.
func Describe(doc *huma.OpenAPI, signIn *access.SignIn) {
	doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", BearerFormat: "JWT", Description: "Wanted where access.required is set in the CO's configuration."},
	}
	schemes := []map[string][]string{{"token": {}}}
	if signIn != nil {
		doc.Components.SecuritySchemes["provider"] = &huma.SecurityScheme{
			Type: "openIdConnect", OpenIDConnectURL: strings.TrimSuffix(signIn.Issuer, "/") + "/.well-known/openid-configuration",
			Description: "An ID token for the client " + signIn.ClientID + ", as Authorization: Bearer TOKEN.",
		}
		schemes = append(schemes, map[string][]string{"provider": {}})
	}
	for path, item := range doc.Paths {
		for method, o := range map[string]*huma.Operation{http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodPatch: item.Patch, http.MethodDelete: item.Delete} {
			if o == nil {
				continue
			}
			need := access.Needs(method + " " + path)
			o.Extensions = map[string]any{"x-colony-permission": need}
			tooMany := func() {
				o.Responses[strconv.Itoa(http.StatusTooManyRequests)] = &huma.Response{
					Description: "Too many requests.", Content: o.Responses[strconv.Itoa(http.StatusUnprocessableEntity)].Content,
					Headers: map[string]*huma.Param{"Retry-After": {Description: "in how many seconds to ask again", Schema: &huma.Schema{Type: huma.TypeInteger}}},
				}
			}
			if need == access.Open {
				if method+" "+path == access.HowToSignIn {
					tooMany()
				}
				continue
			}
			tooMany()
			o.Security = schemes
			problems := o.Responses[strconv.Itoa(http.StatusUnprocessableEntity)].Content
			o.Responses[strconv.Itoa(http.StatusUnauthorized)] = &huma.Response{Description: "Without a token that counts.", Content: problems}
			if status := strconv.Itoa(http.StatusForbidden); need != access.Authenticated && o.Responses[status] == nil {
				o.Responses[status] = &huma.Response{Description: "The role of the token does not allow this.", Content: problems}
			}
		}
	}
}
