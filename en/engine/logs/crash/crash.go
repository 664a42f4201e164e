// Package crash finds in what a program wrote last the line that says why it ended. Where that is a stack trace, the last line
// is a frame, and what happened stands before the trace. It knows the traces of Go, of the JVM, of Node.js and .NET, of Python,
// Rust, Ruby and PHP; of anything else it takes the last line.
package crash

import (
	"regexp"
	"slices"
	"strings"
)

// headLines is how many lines of a message may stand before the first frame of a trace.
const headLines = 20

var (
	// goPanic begins the report of the Go runtime, which goTrace ends.
	goPanic = regexp.MustCompile(`^(panic|fatal error): `)
	goTrace = regexp.MustCompile(`^(goroutine \d+ .*\[.*\]:|created by .*|(r\w{1,5}|[c-gs]s|lr|sp|pc|fault) +0x[0-9a-f]+|\t\S.*:\d+( \+0x[0-9a-f]+)?)$`)
	// goLine is any line between both, but for empty ones, those that begin with a tab, and those of a message.
	goLine = regexp.MustCompile(`^\S+\(.*\)$|^(goroutine|created by|runtime stack:|\[signal|\[originating|exit status|r\w{1,5}|[c-gs]s|lr|sp|pc|fault)\b|^\.\.\.`)
	// frame is a line of a trace of the JVM (a tab), Node.js (four blanks) or .NET (three), and what stands between frames.
	frame = regexp.MustCompile(`^\s+(at .*(\(|:\d)|\.\.\. \d+ (more|common frames omitted|lines matching))|^\s*(Caused by|Suppressed): |^\s+--- End of |^Emitted 'error' event`)
	// head is the line that such a trace is about.
	head = regexp.MustCompile(`^(Exception in thread |Unhandled exception|Uncaught )|^[\w.$/]*(Error|Exception|Throwable|Rejection)\b`)
	// nodeVersion ends the report of Node.js on an uncaught exception.
	nodeVersion = regexp.MustCompile(`^Node\.js v\d`)
	// pythonTrace begins a trace of Python, pythonGroup one of a group of exceptions.
	pythonTrace = "Traceback (most recent call last):"
	pythonGroup = regexp.MustCompile(`^  \| ([\w.]*(Group|Error|Exception)\w*: .*)$`)
)

// Reason returns the line of text that says why its program ended: the last one, unless that is part of a trace. It is "" where
// text has none.
func Reason(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \t\r")
	}
	for _, of := range []func([]string) string{ofGo, ofRust, ofRuby, ofPHP, ofFrames, ofPython} {
		if reason := of(lines); reason != "" {
			return reason
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// ofGo is the panic or the fatal error of a program that ends with the traces of its goroutines; else "".
func ofGo(lines []string) string {
	last := len(lines) - 1
	if strings.HasPrefix(lines[last], "exit status ") { // of "go run"
		last = before(lines, last)
	}
	if last < 0 || !goTrace.MatchString(lines[last]) {
		return ""
	}
	for i := last; i >= 0; i-- {
		if !goPanic.MatchString(lines[i]) {
			continue
		}
		return panicAt(lines, i)
	}
	return ""
}

// panicAt is the panic or the fatal error whose report begins at a line.
func panicAt(lines []string, i int) string {
	reason := lines[i]
	for _, l := range lines[i+1:] { // a deferred function has panicked: the last of them ended the program
		nested, ok := strings.CutPrefix(l, "\tpanic: ")
		if !ok {
			break
		}
		reason = "panic: " + nested
	}
	return reason
}

// Panic returns the panic or the fatal error of Go that text is the report of, from within what a program wrote on: whole lines,
// with nothing after the traces of goroutines; else "". more says that text has nothing but such traces: what stands before it may
// have the beginning, as where there are thousands of goroutines.
func Panic(text string) (reason string, more bool) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	message := 0 // lines of a message
	for i, l := range slices.Backward(lines) {
		l = strings.TrimRight(l, " \r")
		lines[i] = l
		switch {
		case message == 0 && (l == "" || l[0] == '\t'): // of a trace
		case goPanic.MatchString(l):
			return panicAt(lines, i), false
		case message > 0 || !goLine.MatchString(l):
			if message++; message > headLines {
				return "", false
			}
		}
	}
	return "", true
}

// ofFrames is what a trace of the JVM, of Node.js or .NET is about, which ends the lines; else "".
func ofFrames(lines []string) string {
	last := len(lines) - 1
	node := nodeVersion.MatchString(lines[last])
	if node {
		last = before(lines, last)
	}
	if last >= 0 && lines[last] == "}" { // the properties of the exception, behind its last frame
		for open := last - 1; open > 0 && open > last-100; open-- {
			if strings.HasSuffix(lines[open], " {") && frame.MatchString(lines[open]) {
				last = open
				break
			}
		}
	}
	if last < 0 {
		return ""
	}
	if !frame.MatchString(lines[last]) {
		if node { // no trace: the value thrown is no Error
			return strings.TrimSpace(lines[last])
		}
		return ""
	}
	first := last
	for first > 0 && frame.MatchString(lines[first-1]) {
		first--
	}
	for i := first - 1; i >= 0 && i >= first-headLines && lines[i] != ""; i-- { // its message may have several lines
		if head.MatchString(lines[i]) {
			return lines[i]
		}
	}
	if first > 0 && lines[first-1] != "" {
		return strings.TrimSpace(lines[first-1])
	}
	return ""
}

// before is the last line with text before another one; -1: there is none.
func before(lines []string, i int) int {
	for i--; i >= 0 && lines[i] == ""; {
		i--
	}
	return i
}

// ofPython is the exception of a trace of Python whose message has more lines, the last of which is indented; else "".
func ofPython(lines []string) string {
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, " ") {
		return "" // the exception, or something else
	}
	for i := len(lines) - 1; i >= 0; i-- {
		if !strings.HasSuffix(lines[i], pythonTrace) {
			continue
		}
		for j, l := range lines[i+1:] {
			if group := pythonGroup.FindStringSubmatch(l); group != nil {
				return group[1]
			}
			if indented(l) {
				continue
			}
			if slices.ContainsFunc(lines[i+2+j:], func(more string) bool { return !indented(more) }) {
				return "" // something else was written after it
			}
			return l
		}
	}
	return ""
}

// indented reports whether a line belongs to the one before it.
func indented(line string) bool { return line == "" || strings.HasPrefix(line, " ") }
