package archtest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// migration is the name of a step of the database's schema.
var migration = regexp.MustCompile(`^(\d{3})_[a-z0-9_]+\.sql$`)

// TestMigrationNumbers checks that the steps are numbered from 001 on, each number once:
// two branches that add a step at once both take the next number, and their files merge
// without a conflict.
func TestMigrationNumbers(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(root + "/migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d steps found: %v", len(files), err)
	}
	for i, file := range files {
		files[i] = filepath.Base(file)
	}
	for _, fault := range misnumbered(files) {
		t.Error(fault)
	}
}

// TestMisnumberedMigrations plants faults for TestMigrationNumbers.
func TestMisnumberedMigrations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ names, want []string }{
		{names: []string{"002_b.sql", "001_a.sql"}},
		{[]string{"001_a.sql", "001_b.sql"}, []string{"migrations/001_b.sql has the number of 001_a.sql: take 002, and say so where it is named"}},
		{[]string{"001_a.sql", "003_b.sql"}, []string{"migrations/003_b.sql comes after 001_a.sql: its number must be 002"}},
		{[]string{"002_a.sql"}, []string{"migrations/002_a.sql is the first step: its number must be 001"}},
		{[]string{"1_a.sql"}, []string{"migrations/1_a.sql is not named like 001_what_it_does.sql"}},
	} {
		if got := misnumbered(c.names); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.names, got, c.want)
		}
	}
}

// misnumbered returns what is wrong with the names of steps.
func misnumbered(names []string) (faults []string) {
	last, before := 0, ""
	for _, name := range slices.Sorted(slices.Values(names)) {
		m := migration.FindStringSubmatch(name)
		if m == nil {
			faults = append(faults, fmt.Sprintf("migrations/%s is not named like 001_what_it_does.sql", name))
			continue
		}
		n, _ := strconv.Atoi(m[1]) // three digits
		switch {
		case n == last && before != "":
			faults = append(faults, fmt.Sprintf("migrations/%s has the number of %s: take %03d, and say so where it is named", name, before, len(names)))
		case n != last+1 && before == "":
			faults = append(faults, fmt.Sprintf("migrations/%s is the first step: its number must be 001", name))
		case n != last+1:
			faults = append(faults, fmt.Sprintf("migrations/%s comes after %s: its number must be %03d", name, before, last+1))
		}
		last, before = n, name
	}
	return faults
}
