package document

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func strict(string, int, string) bool { return false }

// A reader gets every problem of a document, with path and line, in one pass.
func TestProblemsHavePathAndLine(t *testing.T) {
	t.Parallel()
	top, d, err := Read([]byte("a: 1\nb: [x, '']\nc: {{NAME}}\nd: 1\nd: 2\ne: -1\n"), strict)
	if err != nil {
		t.Fatal(err)
	}
	o := top.Object("a", "b", "c", "d", "e", "needed")
	o.Get("a").Text()
	o.Get("b").Texts()
	o.Get("c").Text()
	o.Get("e").Uint32()
	o.Need("needed").Text()
	o.Get("absent").Text()
	o.Get("a").Warn("odd")
	want := []string{
		"line 3: c: the placeholder {{NAME}} was not replaced",
		"line 5: d: the key stands twice, first in line 4",
		"line 1: a: want a text, got int 1; put it in quotes",
		"line 2: b[1]: want a text that is not empty",
		"line 6: e: want an integer of 0 or more, got int -1",
		"line 1: needed: required, and missing",
	}
	if diff := cmp.Diff(want, strings.Split(d.Err().Error(), "\n")); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Problems{{Path: "a", Line: 1, Message: "odd"}}, d.Warnings()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	for name, doc := range map[string]string{
		"bytes":   strings.Repeat("#", MaxBytes+1),
		"values":  "[" + strings.Repeat("a,", maxNodes+1) + "a]",
		"levels":  strings.Repeat("[", 200) + strings.Repeat("]", 200),
		"aliases": "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d]\n",
		"nothing": " \n",
	} {
		if _, _, err := Read([]byte(doc), strict); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}
