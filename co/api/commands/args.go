package commandsapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// arguments reads the arguments of a kind as JSON has them: strictly. It returns them as the kind defines them, and as nodes
// get them; both are nil where the kind has none.
func arguments(kind command.Kind, args any) (value any, encoded []byte, err error) {
	checked, err := command.NewArgs(kind)
	if checked == nil {
		if args != nil {
			return nil, nil, protocol.Errorf(protocol.Invalid, "a command of kind %s has no arguments", kind)
		}
		return nil, nil, err
	}
	if args == nil {
		return nil, nil, protocol.Errorf(protocol.Invalid, "a command of kind %s needs arguments", kind)
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.Invalid, "arguments: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(checked); err != nil {
		return nil, nil, protocol.Errorf(protocol.Invalid, "%s", fault(err))
	}
	if err := checked.Check(); err != nil {
		return nil, nil, err
	}
	encoded = protocol.Marshal(checked)
	return checked, encoded, command.Arguments(kind, encoded)
}

// fault says what is wrong with arguments, in the words of the API.
func fault(err error) string {
	if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := bad.Field
		if where == "" {
			return "want an object, and this is " + article(bad.Value)
		}
		return where + ": want " + article(bad.Type.String()) + ", and this is " + article(bad.Value)
	}
	return strings.Replace(strings.TrimPrefix(err.Error(), "json: "), "unknown field", "unknown key", 1)
}

func article(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) && !strings.HasPrefix(word, "uint") {
		return "an " + word
	}
	return "a " + word
}

// subjectOf returns the deployment that arguments are about, nil where they are about none.
func subjectOf(args any) *command.Subject {
	switch a := args.(type) {
	case *command.Subject:
		return a
	case *command.LogRequest:
		return &a.Subject
	case *command.ExecRequest:
		return &a.Subject
	case *command.ForwardRequest:
		return &a.Subject
	}
	return nil
}
