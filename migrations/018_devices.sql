-- The accounts of the devices at the sites, as the deployments repo has them: an encoded
-- list of protocol.DeviceAccount, what the site is told. Empty: there are none.
alter table site_files add column devices bytea not null default '';
