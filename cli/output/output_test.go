package output_test

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/cli/output"
)

// A cell with line ends and tabs stays on its line, and in its column.
func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := (output.View{Out: &out}).Table("NAME DEFAULT", [][]string{{"KEY", "-----BEGIN\r\nx\ty"}, {"", "long"}}); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  DEFAULT\nKEY   -----BEGIN\\r\\nx\\ty\n-     long\n"; out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}

// What a client called itself moves no cursor and changes no colour of the terminal that shows it.
func TestTerminalIsNotObeyed(t *testing.T) {
	t.Parallel()
	const hostile = "gw\x1b]0;owned\a\x1b[31m\u009b2J\u202etxt\x7f ü"
	var out strings.Builder
	v := output.View{Out: &out}
	if err := v.Table("NAME", [][]string{{hostile}}); err != nil {
		t.Fatal(err)
	}
	if err := v.Fields("Name", hostile, "Lines", "a\nb"); err != nil {
		t.Fatal(err)
	}
	const shown = `gw\x1b]0;owned\a\x1b[31m\u009b2J\u202etxt\x7f ü`
	if want := "NAME\n" + shown + "\nName:   " + shown + "\nLines:  a\nb\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
