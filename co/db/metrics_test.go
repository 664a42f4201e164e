package db

import "testing"

// TestStatements takes few words for labels, whatever a statement is.
func TestStatements(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"select 1": "select", "\n\t(SELECT 1)": "select", "begin": "begin", "with x as (select 1) delete from y": "with", "lock table x": "other", "": "other", "commit;": "commit",
	} {
		if got := statementOf(sql); got != want {
			t.Errorf("%q is %s, want %s", sql, got, want)
		}
	}
}
