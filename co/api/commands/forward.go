package commandsapi

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/commands/socket"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

type forwardInput struct {
	Site      string `path:"site" doc:"the site"`
	Name      string `path:"name" doc:"the deployment, by its name at the site"`
	Node      string `query:"node" doc:"the node; default the one that has the deployment, where it is one alone"`
	Component string `query:"component" doc:"the component; default the one with such a container"`
	Container string `query:"container" doc:"the container; default the one of the deployment, where it is one alone"`
	Port      uint16 `query:"port" doc:"the TCP port at which the container listens"`
	Idle      string `query:"idle" doc:"after how long without anything that goes through the session ends, such as 2h; from 1s to 24h, default 15m"`
}

func describeForward(o *huma.Operation) {
	o.Description = "The request is the opening handshake of a WebSocket (RFC 6455) of the subprotocol " + socket.Forwarding + ". Connections have numbers, which the client chooses, from 1 on. Binary messages begin with the number of a connection in four bytes, the most significant first; its data follow. " +
		"Text messages are JSON: {type: dial, channel} of the client opens one, {type: eof, channel} of both says that nothing follows in this direction, {type: closed, channel, message} of both that it has ended; {type: open, session}, {type: began, container} and {type: end, reason, message} are of the CO, as of a program. " +
		"What goes through is not recorded. 403 also where the site's file does not allow sessions (spec.exec)."
	o.Errors = append(o.Errors, http.StatusConflict, http.StatusForbidden, http.StatusUpgradeRequired)
	form.Raw(o, http.StatusSwitchingProtocols, "The session")
}

func (r *routes) forward(ctx context.Context, in *forwardInput) (*huma.StreamResponse, error) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	req := &command.ForwardRequest{Key: public, Subject: command.Subject{Deployment: protocol.DeploymentName(in.Name), Component: in.Component, Container: in.Container}, Port: in.Port}
	o := &opening{key: key, session: fleet.Session{Arguments: []string{"port-forward", strconv.Itoa(int(in.Port))}}}
	if err := r.opening(ctx, o, asked{in.Site, in.Node, in.Idle, command.Forward, req, &req.Subject}); err != nil {
		return nil, r.fail(ctx, err)
	}
	return r.upgrade(o, socket.Forwarding), nil
}
