package command

import "github.com/colonyfleet/colony/protocol"

// A ForwardRequest are the arguments of Forward. It names one container.
type ForwardRequest struct {
	Subject
	// Port is the TCP port at which the container listens.
	Port uint16 `cbor:"4,keyasint" json:"port"`
	// Key is as in an ExecRequest.
	Key []byte `cbor:"5,keyasint" json:"key"`
}

// Check returns what is wrong with the arguments.
func (r *ForwardRequest) Check() error {
	if err := r.Subject.Check(); err != nil {
		return err
	}
	if r.Port == 0 {
		return protocol.Errorf(protocol.Invalid, "port 0: want the TCP port at which the container listens, 1 to 65535")
	}
	return checkKey(r.Key)
}
