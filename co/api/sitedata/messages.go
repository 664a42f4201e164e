package sitedata

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A DataMessage is one message of a site's machine data.
type DataMessage struct {
	Topic string `json:"topic" doc:"below colony/v1/{site}/data/"`
	Rule  string `json:"rule"` // name of the data rule
	// Time is nil where the site's clock gave no time of a calendar.
	Time     *time.Time `json:"time,omitempty" doc:"arrival at the site, by the site's clock"`
	Unsynced bool       `json:"timeUnsynced,omitempty" doc:"the clock of time was not synchronised"`
	Received *time.Time `json:"received,omitempty" doc:"when the CO stored it; absent in a stream for a message that is not stored"`

	Payload       *string `json:"payload,omitempty" doc:"the payload as text; absent where it is no UTF-8"`
	PayloadBase64 []byte  `json:"payloadBase64,omitempty" doc:"the payload where it is no UTF-8"`
	QoS           uint8   `json:"qos"`              // of the publisher, 0 to 2
	Retain        bool    `json:"retain,omitempty"` // the site's broker retains it

	ContentType     string         `json:"contentType,omitempty"`   // as the publisher set it (MQTT 5); absent: it did not
	ResponseTopic   string         `json:"responseTopic,omitempty"` // likewise
	CorrelationData []byte         `json:"correlationData,omitempty" doc:"base64"`
	Properties      []UserProperty `json:"properties,omitempty" doc:"MQTT 5 user properties"`
}

// A UserProperty is a name with a value; a name may come more than once.
type UserProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"` // the value of this one
}

// Messages is a page of stored messages.
type Messages struct {
	Items []DataMessage `json:"items" doc:"those of a rule are in the order of their arrival at the site"`
	Next  string        `json:"next,omitempty" doc:"goes into after for the next page; absent on the last"`
	Read  string        `json:"read" doc:"goes into after, or into Last-Event-ID of the stream, for what comes later"`
}

// MessageQuery picks messages. It is exported because it is embedded, and huma reads
// exported fields only.
type MessageQuery struct {
	form.SitePath
	Topic string    `query:"topic" doc:"MQTT topic filter, below colony/v1/{site}/data/" example:"line/+/temperature"`
	Rule  string    `query:"rule" doc:"only of this data rule"`
	Since time.Time `query:"since" doc:"only what the CO received then or later"`
}

func (q MessageQuery) filter() (fleet.MessageFilter, error) {
	f := fleet.MessageFilter{Topic: q.Topic, Rule: q.Rule, Since: q.Since}
	var err error
	if f.Site, err = q.Parse(); err != nil {
		return f, err
	}
	if !validFilter(q.Topic) {
		return f, problem.At("query.topic", protocol.Errorf(protocol.Invalid,
			"%q: want an MQTT topic filter: + is a whole level, # the whole last one, as in line/+/temperature or line/#", q.Topic))
	}
	return f, nil
}

// validFilter reports whether f is a topic filter (MQTT 5, section 4.7.1), or empty.
func validFilter(f string) bool {
	levels := strings.Split(f, "/")
	for i, level := range levels {
		if strings.ContainsAny(level, "+#") && level != "+" && (level != "#" || i < len(levels)-1) {
			return false
		}
	}
	return len(f) < 1<<16
}

func (a *routes) listMessages(ctx context.Context, in *struct {
	MessageQuery
	Until  time.Time `query:"until" doc:"only what the CO received before"`
	After  string    `query:"after" doc:"what the answer before gave as next or read"`
	Limit  int       `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many messages"`
	Newest bool      `query:"newest" doc:"the last ones instead of the first; the order is the same"`
},
) (*form.Reply[Messages], error) {
	f, err := in.filter()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	if f.After, err = fleet.ParsePositions(in.After); err != nil {
		return nil, a.fail(ctx, problem.At("query.after", err))
	}
	f.Until, f.Limit, f.Newest = in.Until, in.Limit, in.Newest
	if _, err := a.opts.Fleet.Site(ctx, f.Site); err != nil {
		return nil, a.fail(ctx, err)
	}
	page, err := a.opts.Data.Messages(ctx, f)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	out := Messages{Items: []DataMessage{}, Read: page.Read.String()}
	for _, m := range page.Messages {
		out.Items = append(out.Items, stored(m))
	}
	if page.More && !f.Newest {
		out.Next = out.Read
	}
	return &form.Reply[Messages]{Body: out}, nil
}

func stored(m fleet.Message) DataMessage {
	out := showMessage(m.Message)
	out.Rule, out.Time, out.Received = m.Rule, m.SiteTime, &m.Received
	return out
}

func delivered(d fleet.Delivery) DataMessage {
	out := showMessage(d.Message)
	out.Rule = strings.TrimPrefix(d.Stream, protocol.DataStream(""))
	if !d.Time.IsZero() {
		out.Time = &d.Time
	}
	return out
}

func showMessage(m protocol.DataMessage) DataMessage {
	out := DataMessage{
		Topic: m.Topic, QoS: m.QoS, Retain: m.Retain, ContentType: m.ContentType, ResponseTopic: m.ResponseTopic,
		CorrelationData: m.CorrelationData,
	}
	if utf8.Valid(m.Payload) {
		text := string(m.Payload)
		out.Payload = &text
	} else {
		out.PayloadBase64 = m.Payload
	}
	var own []string
	out.Unsynced, own = stream.Unsynced(m.Properties)
	for i := 0; i+1 < len(own); i += 2 {
		out.Properties = append(out.Properties, UserProperty{own[i], own[i+1]})
	}
	return out
}
