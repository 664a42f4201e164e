package compiler

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

const twoReaders = `services:
  database:
    image: d
    environment:
      POSTGRES_PASSWORD: ${DB_PASSWORD}
  server:
    image: s
    env_file: [.env]
`

// A database takes its password from the parameter, and its client from an env file.
func TestEnvFileThatNoParameterChanges(t *testing.T) {
	t.Parallel()
	value := "postgres"
	variables := []v1rc3.Variable{{Name: "DB_PASSWORD", Parameter: "DB_PASSWORD", Default: &value}}
	const fixed = "services.server.env_file: %: sets DB_PASSWORD for service server, whatever value a deployment gives its parameter: write DB_PASSWORD=${DB_PASSWORD} there, " +
		"which is filled in from the parameter, or DB_PASSWORD=${DB_PASSWORD:-value} with what holds without one"
	says := func(file, line string) string {
		return file + ": " + line + ": " + strings.Replace(fixed, "%:", file, 1)
	}
	for name, c := range map[string]struct {
		compose string
		files   map[string]string
		want    []string
	}{
		"fixed":              {twoReaders, map[string]string{".env": "# c\nPORT=1\nDB_PASSWORD=postgres\n"}, []string{says(".env", "line 3")}},
		"exported, twice":    {twoReaders, map[string]string{".env": "DB_PASSWORD=${DB_PASSWORD}\nexport DB_PASSWORD = 'a'\n"}, []string{says(".env", "line 2")}},
		"follows":            {twoReaders, map[string]string{".env": "DB_PASSWORD=${DB_PASSWORD}\n"}, nil},
		"has its own value":  {twoReaders, map[string]string{".env": "DB_PASSWORD=${DB_PASSWORD:-postgres}\n"}, nil},
		"without a value":    {twoReaders, map[string]string{".env": "DB_PASSWORD\n"}, nil},
		"of no parameter":    {twoReaders, map[string]string{".env": "OTHER=postgres\n"}, nil},
		"beside environment": {twoReaders + "    environment: [DB_PASSWORD]\n", map[string]string{".env": "DB_PASSWORD=postgres\n"}, nil},
		"a later file follows": {
			strings.Replace(twoReaders, "[.env]", "[.env, my.env]", 1),
			map[string]string{".env": "DB_PASSWORD=postgres\n", "my.env": "DB_PASSWORD=$DB_PASSWORD\n"},
			nil,
		},
		"a later file does not": {
			strings.Replace(twoReaders, "[.env]", "[.env, conf/my.env]", 1),
			map[string]string{".env": "DB_PASSWORD=${DB_PASSWORD}\n", "conf/my.env": "\nDB_PASSWORD: b\n"},
			[]string{says("conf/my.env", "line 2")},
		},
	} {
		_, got, err := CheckArchive("web", composeArchive(t, c.compose, c.files), variables)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: warnings (-want +got):\n%s", name, diff)
		}
	}
}

// A value that follows another parameter does not follow its own.
func TestEnvFileThatAnotherParameterChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		compose string
		files   map[string]string
		want    []string // the variables that are warned of
	}{
		"a URL with a password": {
			"services:\n  web: {image: w, environment: {DATABASE_URL: \"${DATABASE_URL}\"}}\n  worker: {image: w, env_file: .env}\n",
			map[string]string{".env": "DB_PASSWORD=pw\nDATABASE_URL=postgres://app:${DB_PASSWORD}@db/app\n"},
			[]string{"DB_PASSWORD", "DATABASE_URL"},
		},
		"a URL with a port": {
			"services:\n  web: {image: w, environment: {BASE_URL: \"${BASE_URL:-http://localhost}\", PORT: \"${PORT:-80}\"}}\n  worker: {image: w, env_file: w.env}\n",
			map[string]string{"w.env": "BASE_URL=http://web:${PORT:-80}\n"},
			[]string{"BASE_URL"},
		},
		"its own, unless another one has a value": {
			"services: {web: {image: w, env_file: w.env}}\n", map[string]string{"w.env": "BASE_URL=${PORT:-${BASE_URL}}\n"}, nil,
		},
		"its own, where another one has a value": {
			"services: {web: {image: w, env_file: w.env}}\n", map[string]string{"w.env": "BASE_URL=${PORT:+${BASE_URL}}\n"}, nil,
		},
		"by a variable of .env": {
			"services: {web: {image: w, env_file: w.env}}\n", map[string]string{".env": "ALL=${BASE_URL} ${PORT}\n", "w.env": "BASE_URL=${ALL} ${PORT}\n"}, nil,
		},
	} {
		var variables []v1rc3.Variable
		for _, v := range []string{"BASE_URL", "DATABASE_URL", "DB_PASSWORD", "PORT"} {
			variables = append(variables, v1rc3.Variable{Name: v, Parameter: v})
		}
		_, warnings, err := CheckArchive("web", composeArchive(t, c.compose, c.files), variables)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, w := range warnings {
			if _, after, ok := strings.Cut(w, " sets "); ok {
				got = append(got, strings.Fields(after)[0])
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: warned of (-want +got):\n%s\n%q", name, diff, warnings)
		}
	}
}

// What the warning says to write gives both services one value, that of the deployment or another.
func TestEnvFileFilledInFromTheParameter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env   string
		given map[string]string
		want  string
	}{
		{"DB_PASSWORD=${DB_PASSWORD}\n", map[string]string{"DB_PASSWORD": "s3cret"}, "s3cret"},
		{"DB_PASSWORD=${DB_PASSWORD:-postgres}\n", map[string]string{"DB_PASSWORD": "s3cret"}, "s3cret"},
		{"DB_PASSWORD=${DB_PASSWORD:-postgres}\n", nil, "postgres"},
	} {
		got, err := compileOne(t, twoReaders, map[string]string{".env": c.env}, c.given)
		if err != nil {
			t.Fatal(err)
		}
		if database, server := got[0].Env, got[1].Env; !slices.Equal(database, []string{"POSTGRES_PASSWORD=" + c.want}) || !slices.Equal(server, []string{"DB_PASSWORD=" + c.want}) {
			t.Errorf("%q with %v: the database has %q, the server %q; want %s", c.env, c.given, database, server, c.want)
		}
	}
}
