package link

import (
	"context"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// inventory is the one that the LO acknowledged last.
type inventory struct {
	value  protocol.Inventory
	number uint64 // of those that were acknowledged
	news   notify.Broadcast
}

// sentInventory notes that the LO has an inventory.
func (l *Link) sentInventory(inv protocol.Inventory, payload []byte) {
	l.mu.Lock()
	l.sent = payload
	l.last.value = inv
	l.last.number++
	l.mu.Unlock()
	l.last.news.Notify()
}

// Look has the inventory collected and sent, even if it has not changed, and returns the inventory once the LO
// has it.
func (l *Link) Look(ctx context.Context) (protocol.Inventory, error) {
	l.mu.Lock()
	l.sent = nil
	before := l.last.number
	l.mu.Unlock()
	l.changed.Notify()
	for {
		news := l.last.news.C()
		l.mu.Lock()
		value, number := l.last.value, l.last.number
		l.mu.Unlock()
		if number > before {
			return value, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return value, context.Cause(ctx)
		}
	}
}

// Commands reports whether the link is up, to an LO that sends commands.
func (l *Link) Commands() bool {
	return l.client.Subscribed(topic.ForNodeCommand(topic.NodeCommand, l.o.Site, l.o.Node, topic.AnyCommand))
}

// Result carries the result of a command to the LO; nil: the LO has it.
func (l *Link) Result(ctx context.Context, r command.Result) error {
	m := l.message(topic.ForNode(topic.CommandResult, l.o.Site, l.o.Node), &r)
	m.QoS = 1
	return l.client.Publish(ctx, m)
}

// AskTime asks the LO for the time of the CO. The question may get lost.
func (l *Link) AskTime(ctx context.Context, ask command.TimeAsk) error {
	return l.client.Publish(ctx, l.message(topic.ForNode(topic.NodeTimeAsk, l.o.Site, l.o.Node), &ask))
}

// Frame carries a piece of what a command sends live. It may get lost.
func (l *Link) Frame(ctx context.Context, id command.ID, f command.Frame) error {
	return l.client.Publish(ctx, client.Message{
		Topic: topic.ForNodeCommand(topic.NodeLive, l.o.Site, l.o.Node, string(id)), Payload: protocol.Marshal(&f), ContentType: protocol.ContentType,
	})
}
