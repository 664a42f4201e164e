-- Of which commit of the deployments repo the desired state was made that the site holds, as it reported; empty: not known.
alter table sites add column held_commit text not null default '';

-- Whether the LO has reported since the restore that it holds nothing: what it had between the backup and then is not known at either end, so that
-- the record goes on above it.
alter table restored_positions add column lost boolean not null default false;
