-- One word for one thing: the numbered sequences of records between a site and the CO
-- are streams, on every tier and in the API.

alter table lanes rename to streams;
alter index lanes_pkey rename to streams_pkey;
alter table streams rename column lane to stream;
alter table streams rename column left_epochs to retired_epochs;
alter table streams rename column told_at to reported_at;
alter table streams rename column told_epoch to reported_epoch;
comment on table streams is 'Streams from the sites: one row for each, the name empty for the events, which have their position in sites.';
comment on column streams.seq is 'The last sequence committed.';
comment on column streams.era is 'How many epochs the stream had before this one.';
comment on column streams.retired_epochs is 'Epochs that the site has given up, the newest last. A late batch of one is ignored.';
comment on column streams.reported_at is 'When the site last reported reported_epoch to rate.';
comment on column streams.oldest_ms is 'Milliseconds: the age of the oldest record at reported_at.';
comment on column streams.rtt_us is 'Microseconds: the round-trip time of the link; 0 where it was not measured.';
comment on column streams.rate is 'Bytes per second that the link carried when it was last busy.';

alter table sites rename column left_epochs to retired_epochs;

alter table data_retained rename column lane to stream;
alter index data_retained_lane rename to data_retained_stream;

alter table down_lanes rename to down_streams;
alter index down_lanes_pkey rename to down_streams_pkey;
comment on table down_streams is 'Streams to the sites: one row for each rule that ever had a message, so that a sequence is used once.';
comment on column down_streams.acked is 'The highest sequence that the site has acknowledged.';
comment on column down_streams.reported is 'How many of the dropped messages an event in the feed has reported.';
comment on column down_streams.stale is 'What the site retains may differ from down_retained.';

alter table down_queue rename column taken_at to accepted_at;
alter table down_retained rename column taken_at to accepted_at;
comment on column down_queue.accepted_at is 'When the CO accepted the message from its client.';
comment on column down_queue.volatile is 'To be sent only while the site is connected.';
