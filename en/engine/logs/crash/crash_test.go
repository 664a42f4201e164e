package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// texts are what programs of each runtime have written to stderr before they ended: Go 1.26, OpenJDK 17, Node.js 20, Python 3, Rust 1.95;
// of older Rust, of Ruby and of PHP they are written after the formats of their runtimes.
var texts = map[string]string{
	"go-a-panic.txt":                        `panic: open /etc/shop/licence: no such file or directory`,
	"go-a-panic-in-a-deferred-function.txt": `panic: no licence in /etc/shop`,
	"go-a-fatal-error.txt":                  `fatal error: all goroutines are asleep - deadlock!`,
	"the-jvm.txt":                           `Exception in thread "main" java.lang.IllegalStateException: no licence`,
	"nodejs-an-event.txt":                   `Error: connect ECONNREFUSED 127.0.0.1:1`,
	"nodejs-a-message-of-two-lines.txt":     `TypeError: no licence:`,
	"nodejs-a-rejected-promise.txt":         `UnhandledPromiseRejection: This error originated either by throwing inside of an async function without a catch block, or by rejecting a promise which was not handled with .catch(). The promise rejected with the reason "no licence".`,
	"nodejs-a-value-that-is-no-error.txt":   `{ a: 1 }`,
	"nodejs-a-wrong-program.txt":            `SyntaxError: Unexpected token ';'`,
	"nodejs-an-error-with-its-cause.txt":    `Error: no licence`,
	"python-a-message-of-two-lines.txt":     `ValueError: no licence:`,
	"python-a-group.txt":                    `ExceptionGroup: two (2 sub-exceptions)`,
	"python-a-wrong-program.txt":            `SyntaxError: '(' was never closed`,
	"rust-an-index.txt":                     `index out of bounds: the len is 3 but the index is 7`,
	"rust-a-message-of-two-lines.txt":       "assertion `left == right` failed: no licence:",
	"rust-a-backtrace.txt":                  `no licence: Os { code: 2, kind: NotFound, message: "No such file or directory" }`,
	"rust-a-full-backtrace.txt":             `no licence: Os { code: 2, kind: NotFound, message: "No such file or directory" }`,
	"rust-before-1.73.txt":                  `index out of bounds: the len is 3 but the index is 7`,
	"ruby.txt":                              `app.rb:3:in 'Object#licence': no licence (RuntimeError)`,
	"ruby-before-3.4.txt":                   "app.rb:2:in `read': No such file or directory @ rb_sysopen - /etc/shop/licence (Errno::ENOENT)",
	"ruby-with-its-source.txt":              `app.rb:2:in 'Object#licence': undefined method 'key' for nil (NoMethodError)`,
	"ruby-with-its-source-alone.txt":        `app.rb:2:in '<main>': undefined method 'key' for nil (NoMethodError)`,
	"php.txt":                               `PHP Fatal error:  Uncaught RuntimeException: no licence in /app/shop.php:3`,
	"php-with-its-cause.txt":                `Fatal error: Uncaught LogicException: no licence`,
}

// TestRealTexts finds the reason in what real programs have written, whatever they wrote before, and not where they went on after it.
func TestRealTexts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != len(texts) {
		t.Fatalf("%d texts, %v; want %d", len(files), err, len(texts))
	}
	for name, want := range texts {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for what, text := range map[string]string{
			"alone": text, "after lines of the program": "listening on :8080\nError: retried\n\tat the gate (1)\npanic: recovered\n\n" + text,
			"with CRLF": strings.ReplaceAll(text, "\n", "\r\n"), "without its first part": text[strings.Index(text, want):],
		} {
			if what == "without its first part" && (strings.HasPrefix(name, "python") || strings.HasPrefix(name, "rust")) {
				continue // the first line alone says what it is
			}
			if got := Reason(text); got != want {
				t.Errorf("%s, %s: %q, want %q", name, what, got, want)
			}
		}
		if got := Reason(text + "INFO going on\nno room on the disk\n"); got != "no room on the disk" {
			t.Errorf("%s, and the program went on: %q, want the last line", name, got)
		}
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"nothing":          {"\n \n", ""},
		"one line":         {"no licence\n\n", "no licence"},
		"an indented line": {"config:\n  port is taken\n", "port is taken"},
		"Go, killed by a signal": {
			"fatal error: unexpected signal during runtime execution\n[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x0]\n\ngoroutine 1 gp=0xc0 m=0 [syscall]:\nruntime.cgocall(0x1)\n\t/usr/local/go/src/runtime/cgocall.go:157 +0x4b\n\nrax    0x0\nrip    0x7f\nrflags 0x246\ncs     0x33\nfs     0x0\ngs     0x0\n",
			"fatal error: unexpected signal during runtime execution",
		},
		"the JVM, of a framework": {"2026-01-02 ERROR o.s.boot.SpringApplication : Application run failed\n\njava.lang.IllegalStateException: no licence\n\tat a.B.c(B.java:1) ~[app.jar:na]\n\t... 3 common frames omitted\n", "java.lang.IllegalStateException: no licence"},
		".NET": {
			"Unhandled exception. System.InvalidOperationException: no licence\n ---> System.IO.FileNotFoundException: /etc/licence\n   at Shop.Open() in /src/Shop.cs:line 3\n   --- End of inner exception stack trace ---\n   at Shop.Main(String[] args) in /src/Shop.cs:line 9\n",
			"Unhandled exception. System.InvalidOperationException: no licence",
		},
		"Python, one line":             {"Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    run()\nValueError: no licence\n", "ValueError: no licence"},
		"text that only looks like it": {"the pump stopped\n  at night\n", "at night"},
	} {
		if got := Reason(c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
