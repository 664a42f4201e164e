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
