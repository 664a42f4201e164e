package co

import (
	"strings"
	"testing"
	"time"
)

func TestRemoteWriteOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]RemoteWriteOptions{
		"": {URL: "https://prometheus.example/api/v1/write", CredentialFile: "/etc/colony/prometheus", Timeout: time.Second},
		`remoteWrite.url "prometheus:9090": want one such as http://prometheus:9090/api/v1/write`: {URL: "prometheus:9090"},
		"remoteWrite.url: missing, and other keys of remoteWrite are set":                         {Timeout: time.Second},
		`remoteWrite.credentialFile "secret": want an absolute path`:                              {URL: "http://x/", CredentialFile: "secret"},
		"remoteWrite.timeout -1s: want a duration above 0":                                        {URL: "http://x/", Timeout: -time.Second},
	} {
		switch err := o.validate(); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	if err := (RemoteWriteOptions{}).validate(); err != nil {
		t.Errorf("without remote write: %v", err)
	}
}
