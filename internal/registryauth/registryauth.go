// Package registryauth reads the files in which container tools keep the credentials of
// registries: config.json of Docker and auth.json of Podman, Skopeo and Buildah.
package registryauth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A File holds credentials by registry. The zero value holds none. It may be used
// concurrently.
type File struct {
	path   string
	auths  map[string]entry
	helper map[string]string // programs that keep the credentials of a registry; "" for all
}

type entry struct {
	Auth          string `json:"auth"` // base64 of user:password
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
}

// Read reads a file of credentials.
func Read(path string) (File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read the credentials of registries: %w", err)
	}
	var doc struct {
		Auths       map[string]entry  `json:"auths"`
		CredsStore  string            `json:"credsStore"`
		CredHelpers map[string]string `json:"credHelpers"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return File{}, fmt.Errorf("read the credentials of registries: %s: want JSON with auths, as docker login and podman login write it: %w", path, err)
	}
	f := File{path: path, auths: map[string]entry{}, helper: map[string]string{}}
	for key, e := range doc.Auths {
		f.auths[hostOf(key)] = e
	}
	for key, program := range doc.CredHelpers {
		f.helper[hostOf(key)] = program
	}
	if doc.CredsStore != "" {
		f.helper[""] = doc.CredsStore
	}
	return f, nil
}

// Default returns the path of the file that container tools would read: REGISTRY_AUTH_FILE,
// then auth.json of the user's session, then that of Docker. It is "" where there is none.
func Default() string {
	if named := os.Getenv("REGISTRY_AUTH_FILE"); named != "" {
		return named
	}
	var candidates []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		candidates = append(candidates, filepath.Join(dir, "containers", "auth.json"))
	}
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		candidates = append(candidates, filepath.Join(dir, "config.json"))
	} else if home, err := os.UserHomeDir(); err == nil {
		candidates = append(candidates, filepath.Join(home, ".docker", "config.json"))
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// hostOf is the registry of a key, which may be a URL: https://index.docker.io/v1/ is
// Docker Hub.
func hostOf(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, path, _ := strings.Cut(key, "/")
	if strings.Trim(path, "/") != "" && path != "v1/" && path != "v2/" {
		return key // the credentials of one namespace
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// Credentials returns the user and the password of a registry, host or host:port; both
// are empty where the file has none. A password without a user is an identity token. It
// runs no program: if the file uses a credential helper, the error says that helpers are not
// supported.
func (f File) Credentials(host string) (user, password string, err error) {
	host = hostOf(host)
	e, ok := f.auths[host]
	if program := f.helper[host]; program != "" || ok && e == (entry{}) && f.helper[""] != "" {
		if program == "" {
			program = f.helper[""]
		}
		return "", "", fmt.Errorf("%s leaves the credentials of %s to the program docker-credential-%s, which is not run: log in with podman login --authfile FILE, and name that file", f.path, host, program)
	}
	switch {
	case !ok:
		return "", "", nil
	case e.IdentityToken != "":
		return "", e.IdentityToken, nil
	case e.Auth == "":
		return e.Username, e.Password, nil
	}
	b, err := base64.StdEncoding.DecodeString(e.Auth)
	user, password, ok = strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
	if err == nil && !ok {
		err = errors.New("no colon in it")
	}
	if err != nil {
		return "", "", fmt.Errorf("%s: auths[%q].auth: want the base64 of user:password: %w", f.path, host, err)
	}
	return user, password, nil
}
