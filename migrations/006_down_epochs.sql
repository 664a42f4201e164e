-- A site that has retired the database's epoch, as after the CO went on with another
-- database for a while, does not accept what is sent under it.
alter table down_streams
    add column epoch text not null default ''; -- of the stream; empty: the database's
