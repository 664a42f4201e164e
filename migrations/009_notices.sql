-- What the CO reports of a file of the deployments repo it reports once, also over a restart.
create index events_notices on events (kind, md5(message))
    where kind in ('file_ignored', 'deployment_waiting', 'site_added');
