package broker

import (
	"fmt"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// refusedTopic stands before the name of a topic that access control shall
// refuse. mochi itself would drop a message on $SYS without any answer.
const refusedTopic = "\x7f"

// hook is what mochi calls. Its methods run on the goroutine of the client that
// they are about, except OnACLCheck for reading, OnQosPublish and
// OnPublishDropped, which run on the publisher's.
type hook struct {
	mqtt.HookBase
	b *Broker
}

// ID names the hook.
func (h *hook) ID() string { return "colony" }

// Provides reports which of the methods are to be called.
func (h *hook) Provides(what byte) bool {
	switch what {
	case mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablished, mqtt.OnACLCheck,
		mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnSubscribed, mqtt.OnPublish,
		mqtt.OnPublishDropped, mqtt.OnQosPublish, mqtt.OnPacketIDExhausted:
		return true
	}
	return false
}

// connOf returns the connection of a client, or nil for the broker itself.
func connOf(cl *mqtt.Client) *conn {
	c, _ := cl.Net.Conn.(*conn)
	return c
}

func sessionOf(cl *mqtt.Client) *session {
	if c := connOf(cl); c != nil {
		return c.session.Load()
	}
	return nil
}

// OnPacketRead changes what mochi gets to see of a packet.
func (h *hook) OnPacketRead(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	c := connOf(cl)
	if c == nil {
		return p, nil
	}
	switch p.FixedHeader.Type {
	case packets.Connect:
		if c.client.Load() == nil {
			return h.onHello(c, cl, p), nil
		}
	case packets.Puback, packets.Pubcomp:
		c.acknowledged()
	case packets.Pubrec:
		if p.ReasonCode >= packets.ErrUnspecifiedError.Code {
			c.acknowledged()
		}
	case packets.Disconnect:
		if s := c.session.Load(); s != nil {
			s.clean.Store(p.ReasonCode != packets.CodeDisconnectWillMessage.Code)
		}
	case packets.Publish:
		if s := c.session.Load(); s != nil {
			s.wait(h.b.ctx)
		}
		if strings.HasPrefix(p.TopicName, "$") {
			p.TopicName = refusedTopic + p.TopicName
		}
	}
	return p, nil
}

// onHello takes out of CONNECT what mochi must not act on: the will, which the
// broker sends itself; the Receive Maximum, kept by the connection's window,
// because mochi loses messages by it and can lock itself for good; topic aliases,
// which it sends again in place of the topic; and the wish for an old session.
func (h *hook) onHello(c *conn, cl *mqtt.Client, p packets.Packet) packets.Packet {
	c.client.Store(cl)
	c.setWindow(p.Properties.ReceiveMaximum, p.ProtocolVersion == 5)
	if p.Connect.WillFlag && p.Connect.WillQos <= 2 { // else mochi refuses the packet
		c.will = &Message{
			Topic: p.Connect.WillTopic, Payload: p.Connect.WillPayload,
			QoS: p.Connect.WillQos, Retain: p.Connect.WillRetain,
			Expiry:          time.Duration(p.Connect.WillProperties.MessageExpiryInterval) * time.Second,
			ContentType:     p.Connect.WillProperties.ContentType,
			ResponseTopic:   p.Connect.WillProperties.ResponseTopic,
			CorrelationData: p.Connect.WillProperties.CorrelationData,
			Properties:      propertiesOf(p.Connect.WillProperties.User),
		}
		p.Connect.WillFlag, p.Connect.WillRetain, p.Connect.WillQos = false, false, 0
		p.Connect.WillTopic, p.Connect.WillPayload = "", nil
	}
	p.Properties.ReceiveMaximum = 0
	p.Properties.TopicAliasMaximum = 0
	p.Connect.Clean = true
	if p.Connect.Keepalive < 43_000 {
		p.Connect.Keepalive += p.Connect.Keepalive & 1 // mochi rounds half of it down: 1 s would be no grace at all
	}
	longest := uint16(min(h.b.o.Limits.KeepAlive/time.Second, 43_000)) // above 43,690 mochi's sum of 1.5 × overflows
	if p.ProtocolVersion != 5 {
		p.Connect.Keepalive = min(p.Connect.Keepalive, 43_000)
	} else if p.Connect.Keepalive == 0 || p.Connect.Keepalive > longest {
		p.Connect.Keepalive = longest
		cl.State.ServerKeepalive = true // the client is told
	}
	return p
}

// OnConnect decides on a CONNECT. mochi sends no answer for an error of it.
func (h *hook) OnConnect(cl *mqtt.Client, p packets.Packet) error {
	c := connOf(cl)
	if c == nil {
		return packets.ErrServerUnavailable
	}
	err := h.b.accept(c, cl, p)
	if err == nil {
		return nil
	}
	code := refuseCode(err, p.ProtocolVersion == 5)
	h.b.metrics.refused("connect", fmt.Sprintf("0x%02x", refuseCode(err, true).Code))
	h.b.log.Warn("connect refused", "client", cl.ID, "user", string(p.Connect.Username), "listener", c.listener.Name,
		"remote", c.RemoteAddr().String(), "code", code.Code, "err", err)
	refusal := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connack},
		ReasonCode:  code.Code,
		Properties:  packets.Properties{ReasonString: code.Reason},
	}
	_ = cl.WritePacket(refusal) // the connection ends now in any case
	return err
}

// OnConnectAuthenticate accepts what OnConnect has accepted.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, _ packets.Packet) bool {
	return sessionOf(cl) != nil
}

// OnSessionEstablished notes a client that has its CONNACK.
func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	h.b.metrics.connects.Inc()
	h.b.log.Info("client connected", "client", cl.ID, "listener", cl.Net.Listener, "remote", cl.Net.Remote, "mqtt", cl.Properties.ProtocolVersion)
}

// OnPacketEncode adds to CONNACK what mochi does not say, and notes that a message
// has left mochi's queue.
func (h *hook) OnPacketEncode(cl *mqtt.Client, p packets.Packet) packets.Packet {
	switch {
	case p.FixedHeader.Type == packets.Connack && p.ReasonCode == 0:
		p.Properties.MaximumPacketSize = h.b.o.Limits.PacketBytes
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 0, true
	case p.FixedHeader.Type == packets.Publish:
		if s := sessionOf(cl); s != nil {
			s.left(p.FixedHeader.Qos)
		}
	}
	return p
}

// OnACLCheck is asked for each message that a client publishes, for each
// subscription, and for each delivery.
func (h *hook) OnACLCheck(cl *mqtt.Client, name string, write bool) bool {
	s := sessionOf(cl)
	if s == nil {
		return false
	}
	if !write {
		if shared, ok := strings.CutPrefix(name, "$share/"); ok {
			_, name, _ = strings.Cut(shared, "/")
		}
		if !h.b.o.Access.MaySubscribe(s.id, name) {
			return false
		}
		s.pace()
		return true
	}
	if !strings.HasPrefix(name, refusedTopic) && h.b.o.Access.MayPublish(s.id, name) {
		return true
	}
	h.b.metrics.refused("publish", "access")
	h.b.log.Warn("publish refused", "client", s.client, "topic", strings.TrimPrefix(name, refusedTopic))
	return false
}

// OnSubscribed notes refused subscriptions.
func (h *hook) OnSubscribed(cl *mqtt.Client, p packets.Packet, codes []byte) {
	for i, code := range codes {
		if code >= packets.ErrUnspecifiedError.Code && i < len(p.Filters) {
			h.b.metrics.refused("subscribe", "access")
			h.b.log.Warn("subscribe refused", "client", cl.ID, "filter", p.Filters[i].Filter, "code", code)
		}
	}
}

// OnPublish hands a message to Take. Of mochi's ways to go on after an error only
// those used here keep the message from being delivered.
func (h *hook) OnPublish(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if cl.Net.Inline {
		return p, nil
	}
	s := sessionOf(cl)
	if s == nil {
		return p, packets.ErrRejectPacket
	}
	err := h.b.take(s, messageOf(p))
	if err == nil {
		return p, nil
	}
	h.b.log.Warn("message not taken", "client", s.client, "topic", p.TopicName, "qos", p.FixedHeader.Qos, "err", err)
	code := publishCode(err)
	switch {
	case p.FixedHeader.Qos == 0:
		return p, packets.ErrRejectPacket
	case !s.v5:
		h.b.disconnect(s.conn, code) // MQTT 3.1.1 cannot refuse, and must not acknowledge
		return p, packets.ErrRejectPacket
	case p.FixedHeader.Qos == 2:
		ack := packets.Packet{ // mochi would answer with PUBACK
			FixedHeader: packets.FixedHeader{Type: packets.Pubrec}, PacketID: p.PacketID, ReasonCode: code.Code,
			Properties: packets.Properties{ReasonString: code.Reason},
		}
		_ = cl.WritePacket(ack) // a client that is gone needs no answer
		return p, packets.ErrRejectPacket
	}
	return p, code
}

// OnPublishDropped is called when mochi's queue for a subscriber is full. A
// subscriber that has missed a message of QoS 1 or 2 must not go on as if it had
// not; QoS 0 promises nothing.
func (h *hook) OnPublishDropped(cl *mqtt.Client, p packets.Packet) {
	if p.FixedHeader.Qos > 0 {
		h.tooSlow(cl, "queue_full")
		return
	}
	h.b.metrics.dropped("qos0_queue_full")
}

// OnPacketIDExhausted is called when there is no packet id left for a message.
func (h *hook) OnPacketIDExhausted(cl *mqtt.Client, _ packets.Packet) {
	h.tooSlow(cl, "packet_ids")
}

// OnQosPublish is called for each message of QoS 1 and 2 to a client, before it
// enters mochi's queue. It holds the publisher until there is room.
func (h *hook) OnQosPublish(cl *mqtt.Client, p packets.Packet, _ int64, _ int) {
	s := sessionOf(cl)
	if s == nil || p.FixedHeader.Type != packets.Publish {
		return
	}
	if cl.State.Inflight.Len() > h.b.o.Limits.Unacknowledged { // before mochi drops, at its own cap
		h.tooSlow(cl, "unacknowledged")
		return
	}
	select {
	case s.queue <- struct{}{}:
	case <-s.conn.gone:
	}
}

// tooSlow disconnects a client that has missed a message, or is about to.
func (h *hook) tooSlow(cl *mqtt.Client, reason string) {
	h.b.metrics.dropped(reason)
	c := connOf(cl)
	if c == nil || c.isClosed() {
		return
	}
	h.b.log.Warn("slow client disconnected", "client", cl.ID, "reason", reason)
	h.b.disconnect(c, packets.ErrQuotaExceeded)
}
