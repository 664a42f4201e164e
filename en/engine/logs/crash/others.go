package crash

import (
	"regexp"
	"slices"
	"strings"
)

var (
	// rustPanic begins the report of a panic of Rust, whose message is the next line, and before Rust 1.73 in quotes in the same one.
	rustPanic = regexp.MustCompile(`^thread '.*' (\(\d+\) )?panicked at (?:'(.*?)(?:', \S+:\d+:\d+)?|.*:\d+:\d+:)$`)
	// rustNote ends it, or rustFrame does, which is a line of rustTrace.
	rustNote  = regexp.MustCompile("^note: ([Ss]ome details are omitted, )?run with `RUST_BACKTRACE=")
	rustFrame = regexp.MustCompile(`^\s+(\d+: +\S|at \S+:\d+)`)
	rustTrace = "stack backtrace:"

	// rubyHead is the exception of a trace of Ruby, whose frames follow; between them may be the line of the program, with a mark below
	// it, which is the last line where there are no frames.
	rubyHead  = regexp.MustCompile("^\\S.*:\\d+:in [`'].*': .*")
	rubyFrame = regexp.MustCompile("^\\s+(from \\S.*:\\d+:in [`'].*'|\\.\\.\\. \\d+ levels\\.\\.\\.)$")
	rubyMark  = regexp.MustCompile(`^\s*\^+$`)

	// phpHead begins the report of PHP on an uncaught exception, phpEnd ends it.
	phpHead = regexp.MustCompile(`(PHP )?Fatal error: +Uncaught `)
	phpEnd  = regexp.MustCompile(`^\s+thrown in .* on line \d+$`)
)

// ofRust is the message of a panic that ends the lines; else "".
func ofRust(lines []string) string {
	end := len(lines) - 1
	if rustNote.MatchString(lines[end]) {
		end--
	}
	first := end
	for first >= 0 && rustFrame.MatchString(lines[first]) {
		first--
	}
	if first >= 0 && lines[first] == rustTrace {
		end = first - 1
	} else if end == len(lines)-1 {
		return "" // the last line says what happened, or something else
	}
	for i := end; i >= 0 && i >= end-headLines; i-- {
		switch panicked := rustPanic.FindStringSubmatch(lines[i]); {
		case panicked == nil:
		case panicked[2] != "":
			return panicked[2]
		case i < end && lines[i+1] != "":
			return lines[i+1]
		default:
			return lines[i]
		}
	}
	return ""
}

// ofRuby is the exception of a trace of Ruby that ends the lines; else "".
func ofRuby(lines []string) string {
	end := len(lines) - 1
	for end >= 0 && rubyFrame.MatchString(lines[end]) {
		end--
	}
	if end == len(lines)-1 && !rubyMark.MatchString(lines[end]) {
		return ""
	}
	for i := end; i >= 0 && i >= end-headLines; i-- {
		if rubyHead.MatchString(lines[i]) {
			return lines[i]
		}
	}
	return ""
}

// ofPHP is the exception that ended a program of PHP, if the report on it ends the lines; else "".
func ofPHP(lines []string) string {
	if !phpEnd.MatchString(lines[len(lines)-1]) {
		return ""
	}
	for _, l := range slices.Backward(lines) {
		if phpHead.MatchString(l) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}
