package desireddb

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// SaveDesired records what the deployments repo wants of a site as of a commit:
// list is everything that stands there, data what its site.yaml says. It returns
// what to publish, and whether that changed; only then the generation grows. A
// deployment that does not compile and brings no Entry keeps the entry recorded
// before. One that is not in list any more gets a tombstone, which stays until every
// node has reported DELETED, or until list has the name again. A site that is not known begins to exist. The proposals of
// what list holds are opened with it, and ended with what it does not hold any more.
func (s *Desired) SaveDesired(
	ctx context.Context, site protocol.SiteID, commit string, list []fleet.Desired, data fleet.SiteData,
) (protocol.SiteDesired, bool, error) {
	saved := s.saveOne(ctx, commit, fleet.SiteWant{Site: site, Desired: list, Data: data, Files: len(list) > 0})
	return saved.Message, saved.Changed, saved.Err
}

func (s *Desired) saveOne(ctx context.Context, commit string, w fleet.SiteWant) fleet.SiteSaved {
	saved, err := s.saveTogether(ctx, commit, []fleet.SiteWant{w})
	if err != nil {
		return fleet.SiteSaved{Err: err}
	}
	return saved[0]
}

// SaveAll is SaveDesired of several sites in one transaction, and returns an outcome for each.
// Where the transaction fails for a reason that may lie in one of them, each has one of its own.
func (s *Desired) SaveAll(ctx context.Context, commit string, list []fleet.SiteWant) []fleet.SiteSaved {
	out, err := s.saveTogether(ctx, commit, list)
	if err == nil {
		return out
	}
	out = make([]fleet.SiteSaved, len(list))
	alone := len(list) > 1 && protocol.KindOf(err) != protocol.Unavailable && ctx.Err() == nil
	for i, w := range list {
		if out[i].Err = err; alone {
			out[i] = s.saveOne(ctx, commit, w)
		}
	}
	return out
}

// saveTogether saves the desired states of some sites in one transaction.
func (s *Desired) saveTogether(ctx context.Context, commit string, list []fleet.SiteWant) (out []fleet.SiteSaved, err error) {
	sites := make([]protocol.SiteID, len(list))
	for i := range list {
		sites[i] = list[i].Site
	}
	err = s.db.Tx(ctx, "save desired state", func(tx pgx.Tx) error {
		out = out[:0]
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		rows, err := db.LockSites(ctx, tx, sites)
		if err != nil {
			return err
		}
		recorded, err := readRecorded(ctx, tx, sites)
		if err != nil {
			return err
		}
		unrecorded, err := readUnrecorded(ctx, tx, withTombstones(recorded))
		if err != nil {
			return err
		}
		b, counted := &pgx.Batch{}, db.Deployments{}
		var events []fleet.Event
		for _, w := range list {
			row, old := rows[w.Site], recorded[w.Site]
			d, rules := compareDesired(w.Site, old.deployments, w.Desired), compareData(w.Site, old.data, w.Data)
			d.files = w.Files
			d.request(old.requests, old.deployments)
			changed := d.changed || rules.changed
			if changed {
				row.Desired = row.Desired.Next()
				d.number(row.Desired)
				d.placeRequests(row.Desired)
				d.dropTombstones(old.deployments, unrecorded[w.Site], row.Adopted)
			}
			if changed || row.Unfollowed { // of which nothing was published at its position
				row.Commit = commit
			}
			d.queue(b, row, &counted)
			rules.queue(b)
			if changed || row.Unfollowed {
				b.Queue(`update sites set epoch = $2, generation = $3, desired_commit = $4 where id = $1`,
					w.Site, int64(row.Desired.Epoch), int64(row.Desired.Generation), commit)
			}
			events = append(append(events, d.events...), rules.events...)
			message := siteDesired(w.Site, row, d.entries, d.removals, w.Data)
			message.Purges, message.Decommissions = purges(d.requests), wireDecommissions(d.requests)
			out = append(out, fleet.SiteSaved{Message: message, Changed: changed})
		}
		b.Queue(`update sites set unfollowed = false where id = any($1) and unfollowed`, pgdb.Texts(sites))
		db.QueueCount(b, counted)
		db.QueueArchive(b, counted)
		db.QueueDerive(b, counted)
		db.QueueEvents(b, events)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return proposaldb.Save(ctx, tx, list)
	})
	return out, err
}

// LastDesired returns what SaveDesired returned last for a site: a zero position and
// nothing to run where that never was.
func (s *Desired) LastDesired(ctx context.Context, site protocol.SiteID) (protocol.SiteDesired, error) {
	list, err := s.Recorded(ctx, []protocol.SiteID{site})
	if err != nil {
		return protocol.SiteDesired{}, err
	}
	return list[0].Message, nil
}

// desired returns what SaveDesired recorded last for a site, by name.
func (s *Desired) desired(ctx context.Context, site protocol.SiteID) ([]fleet.Desired, error) {
	list, err := s.Recorded(ctx, []protocol.SiteID{site})
	if err != nil {
		return nil, err
	}
	return list[0].Desired, nil
}

// Recorded returns what is recorded as desired of some sites, in their order: nothing, at a
// zero position, of one of which nothing was ever saved.
func (s *Desired) Recorded(ctx context.Context, sites []protocol.SiteID) (out []fleet.SiteRecord, err error) {
	err = s.db.Tx(ctx, "read desired state", func(tx pgx.Tx) error {
		// All that is read of a site is of one moment, and blocks no writer.
		if _, err := tx.Exec(ctx, `set transaction isolation level repeatable read, read only`); err != nil {
			return err
		}
		out, err = siteRecords(ctx, tx, sites)
		return err
	})
	return out, err
}

func siteRecords(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) ([]fleet.SiteRecord, error) {
	rows := make(map[protocol.SiteID]db.SiteRow, len(sites))
	_, err := pgdb.Rows(ctx, tx, func(r pgx.CollectableRow) (row db.SiteRow, err error) {
		var id protocol.SiteID
		err = r.Scan(&id, &row.Desired.Epoch, &row.Desired.Generation, &row.Commit)
		if row.Desired.Generation == 0 {
			row.Desired = protocol.Position{} // the epoch alone says nothing
		}
		rows[id] = row
		return row, err
	}, `select id, epoch, generation, desired_commit from sites where id = any($1)`, pgdb.Texts(sites))
	if err != nil {
		return nil, err
	}
	recorded, err := readRecorded(ctx, tx, sites)
	if err != nil {
		return nil, err
	}
	out := make([]fleet.SiteRecord, len(sites))
	for i, site := range sites {
		out[i] = recorded[site].record(site, rows[site])
	}
	return out, nil
}

// recordedSite is what is recorded as desired of a site.
type recordedSite struct {
	deployments map[protocol.DeploymentName]desiredRow
	data        siteDataRow
	requests    []requestRow
}

func readRecorded(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (map[protocol.SiteID]recordedSite, error) {
	deployments, err := readDesired(ctx, tx, sites)
	if err != nil {
		return nil, err
	}
	data, err := readSiteData(ctx, tx, sites)
	if err != nil {
		return nil, err
	}
	requests, err := readRequests(ctx, tx, sites)
	if err != nil {
		return nil, err
	}
	out := make(map[protocol.SiteID]recordedSite, len(sites))
	for _, site := range sites {
		out[site] = recordedSite{deployments[site], data[site], requests[site]}
	}
	return out, nil
}

// withTombstones returns the sites that have tombstones.
func withTombstones(recorded map[protocol.SiteID]recordedSite) (sites []protocol.SiteID) {
	for site, r := range recorded {
		for _, d := range r.deployments {
			if d.tombstone {
				sites = append(sites, site)
				break
			}
		}
	}
	return sites
}

func (r recordedSite) record(site protocol.SiteID, row db.SiteRow) fleet.SiteRecord {
	var entries []protocol.SiteEntry
	var removals []protocol.Removal
	out := fleet.SiteRecord{Site: site, Data: r.data.SiteData}
	for _, d := range r.deployments {
		if d.tombstone {
			removals = append(removals, d.removal())
		}
		if !d.desired {
			continue
		}
		entry := d.entry
		d.Desired.Entry = entry
		out.Desired = append(out.Desired, d.Desired)
		if entry.Digest != "" && !d.setBack {
			entry.Position = d.position
			entries = append(entries, entry)
		}
	}
	slices.SortFunc(out.Desired, func(a, b fleet.Desired) int { return strings.Compare(string(a.Name), string(b.Name)) })
	out.Message = siteDesired(site, row, entries, removals, r.data.SiteData)
	out.Message.Purges, out.Message.Decommissions = purges(r.requests), wireDecommissions(r.requests)
	return out
}

func siteDesired(
	site protocol.SiteID, row db.SiteRow, entries []protocol.SiteEntry, removals []protocol.Removal, data fleet.SiteData,
) protocol.SiteDesired {
	slices.SortFunc(removals, func(a, b protocol.Removal) int {
		return strings.Compare(string(a.Deployment), string(b.Deployment))
	})
	slices.SortFunc(entries, func(a, b protocol.SiteEntry) int {
		return strings.Compare(string(a.Deployment), string(b.Deployment))
	})
	return protocol.SiteDesired{
		V: protocol.Version, Site: site, Position: row.Desired, Commit: row.Commit, Deployments: entries, Removals: removals,
		Data: wireRules(data.Rules), Devices: data.Devices, Maintenance: data.Maintenance,
	}
}

// A desiredRow is what is recorded as desired of one deployment.
type desiredRow struct {
	fleet.Desired
	desired  bool
	archived bool
	encoded  []byte
	entry    protocol.SiteEntry // without a position

	// position is that of the desired state which last changed it.
	position           protocol.Position
	tombstone, volumes bool
	// setBack says that a change of it is held, or that it is retained, and that entry may be older than what the site has: it is not published.
	setBack bool
	// retained says that it is of a fleet deployment, whose rollout has not reached the site since the record was restored.
	retained bool
	// unfollowed says that the record went on above what the site holds, and that no comparison with the deployments repo was recorded since.
	unfollowed bool
}

// removal returns the tombstone of a deployment that has one.
func (r *desiredRow) removal() protocol.Removal {
	return protocol.Removal{Deployment: r.Name, Position: r.position, Volumes: r.volumes}
}

func readDesired(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (map[protocol.SiteID]map[protocol.DeploymentName]desiredRow, error) {
	out := make(map[protocol.SiteID]map[protocol.DeploymentName]desiredRow, len(sites))
	for _, site := range sites {
		out[site] = map[protocol.DeploymentName]desiredRow{}
	}
	_, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (none struct{}, err error) {
		var r desiredRow
		err = row.Scan(&r.Site, &r.Name, &r.ID, &r.App, &r.AppVersion, &r.Profile, &r.Commit, &r.desired, &r.encoded, &r.Problem,
			&r.archived, &r.position.Epoch, &r.position.Generation, &r.tombstone, &r.volumes,
			&r.Hold.Proposal, &r.Hold.Commit, &r.Hold.Cause, &r.setBack, &r.unfollowed, &r.retained)
		if err == nil && r.encoded != nil {
			err = protocol.Unmarshal(r.encoded, &r.entry)
		}
		out[r.Site][r.Name] = r
		return none, err
	}, `select d.site, d.name, d.margo_id, d.app, d.app_version, d.profile, d.commit, d.desired, d.entry, d.problem, d.archived_at is not null,
			d.epoch, d.generation, d.tombstone, d.remove_volumes, d.held, coalesce(p.commit, ''), coalesce(e.cause, ''), d.set_back, s.unfollowed,
			exists (select from rollout_sites m where m.fleet = d.name and m.site = d.site and m.retained)
		from deployments d join sites s on s.id = d.site left join proposals p on p.id = d.held
		left join proposal_effects e on e.proposal = d.held and e.site = d.site and e.deployment = d.name where d.site = any($1)`, pgdb.Texts(sites))
	return out, err
}

// A desiredDiff is what SaveDesired has to write.
type desiredDiff struct {
	site    protocol.SiteID
	files   bool                             // the repo has some for the site
	listed  map[protocol.DeploymentName]bool // by the repo
	changed bool
	entries []protocol.SiteEntry
	// renewedEntries are the indexes in entries of those that get the next position.
	renewedEntries []int
	// removals are the tombstones; those with a zero Position are new.
	removals []protocol.Removal
	dropped  []string // names whose tombstone has done its work
	write    []desiredRow
	renewed  []string // names that are new, or were removed and are desired once more
	removed  []string
	events   []fleet.Event
	requests []requestRow
	// requested says that there were some, also where none is left.
	requested bool
	repeated  []fleet.Request // the removals among the requests that are taken up
}

func compareDesired(site protocol.SiteID, recorded map[protocol.DeploymentName]desiredRow, list []fleet.Desired) *desiredDiff {
	d := &desiredDiff{site: site, listed: map[protocol.DeploymentName]bool{}}
	for i := range list {
		d.listed[list[i].Name] = true
		d.compare(list[i], recorded[list[i].Name])
	}
	for name, old := range recorded {
		if old.tombstone && !d.listed[name] {
			d.removals = append(d.removals, old.removal())
		}
		if !old.desired || d.listed[name] {
			continue
		}
		d.removed = append(d.removed, string(name))
		if old.encoded != nil {
			d.changed = true
			d.removals = append(d.removals, protocol.Removal{Deployment: name, Volumes: old.volumes})
		}
		d.event(fleet.DeploymentRemoved, old.Desired, "")
	}
	slices.Sort(d.removed)
	slices.SortStableFunc(d.events, func(a, b fleet.Event) int { return strings.Compare(string(a.Deployment), string(b.Deployment)) })
	return d
}

// number gives the next position to what it changes.
func (d *desiredDiff) number(next protocol.Position) {
	for _, i := range d.renewedEntries {
		d.entries[i].Position = next
	}
	for i := range d.removals {
		if d.removals[i].Position.IsZero() {
			d.removals[i].Position = next
		}
	}
}

// dropTombstones leaves out the tombstones that every node has carried out: the site has
// adopted them, and no node has the deployment any more, nor containers of it without a
// record. It may be called with a change of the position only, for it changes what is published.
func (d *desiredDiff) dropTombstones(recorded map[protocol.DeploymentName]desiredRow, unrecorded map[protocol.DeploymentName]bool, adopted protocol.Position) {
	d.removals = slices.DeleteFunc(d.removals, func(r protocol.Removal) bool {
		done := recorded[r.Deployment].archived && !r.Position.After(adopted) && !unrecorded[r.Deployment]
		if done {
			d.dropped = append(d.dropped, string(r.Deployment))
		}
		return done
	})
}

// compare notes what is to be written of one deployment that the repo wants.
func (d *desiredDiff) compare(want fleet.Desired, old desiredRow) {
	now := rowOf(want, old)
	same := bytes.Equal(now.encoded, old.encoded) && now.setBack == old.setBack
	if now.encoded != nil && !now.setBack {
		if !same {
			d.renewedEntries = append(d.renewedEntries, len(d.entries))
		}
		e := now.entry
		e.Position = old.position
		d.entries = append(d.entries, e)
	}
	switch {
	case !old.desired:
		d.renewed = append(d.renewed, string(want.Name))
		d.event(fleet.DeploymentCreated, now.Desired, "")
		d.changed = d.changed || now.encoded != nil
	case !same:
		d.event(fleet.DeploymentChanged, now.Desired, "")
		d.changed = true
	}
	if old.tombstone {
		d.changed = true // it is not in force any more, also where the file does not compile
	}
	if now.Problem != "" && (now.Problem != old.Problem || !old.desired) {
		kind := fleet.DeploymentInvalid
		if want.Waiting {
			kind = fleet.DeploymentWaiting
		}
		d.event(kind, now.Desired, now.Problem)
	}
	if !old.desired || old.tombstone || !same || !now.shownAs(old) {
		d.write = append(d.write, now)
	}
}

// rowOf is what is to be recorded of a deployment. One that does not compile keeps the entry that
// it had, and so what is shown of it.
func rowOf(want fleet.Desired, old desiredRow) desiredRow {
	now := desiredRow{Desired: want, desired: true, entry: want.Entry, setBack: (old.setBack || old.unfollowed) && (want.Hold.Proposal != "" || old.retained)}
	if want.Entry.Digest == "" && want.Problem != "" && old.desired {
		now.entry = old.entry
		// What is shown is what runs: the file may not even say an application.
		if old.encoded != nil {
			now.ID, now.App, now.AppVersion, now.Profile = old.ID, old.App, old.AppVersion, old.Profile
		}
	}
	now.Entry = protocol.SiteEntry{}
	if now.entry.Digest != "" {
		now.entry.Deployment = want.Name
		now.entry.Position = protocol.Position{}
		now.encoded = protocol.Marshal(now.entry)
	}
	return now
}

// shownAs reports whether a deployment is shown as another row shows it.
func (r *desiredRow) shownAs(old desiredRow) bool {
	return old.Problem == r.Problem && old.Commit == r.Commit && old.ID == r.ID && old.Hold.Proposal == r.Hold.Proposal &&
		old.App == r.App && old.AppVersion == r.AppVersion && old.Profile == r.Profile
}

func (d *desiredDiff) event(kind string, of fleet.Desired, message string) {
	d.events = append(d.events, fleet.Event{
		Kind: kind, Site: d.site, Deployment: of.Name, AppVersion: of.AppVersion, Message: message,
	})
}

// queue writes the difference; row has the position of the site's desired state with it. It adds
// to counted what was written: its nodes show another state where another version is desired.
func (d *desiredDiff) queue(b *pgx.Batch, row db.SiteRow, counted *db.Deployments) {
	epoch, generation := int64(row.Desired.Epoch), int64(row.Desired.Generation)
	for _, r := range d.write {
		b.Queue(`insert into deployments as d (site, name, margo_id, app, app_version, profile, commit, desired, digest, entry, problem,
				generation, replicas, epoch, held, set_back)
			values ($1, $2, $3, $4, $5, $6, $7, true, $8, $9, $10, $11, $12, $13, $14, $15)
			on conflict (site, name) do update set margo_id = $3, app = $4, app_version = $5, profile = $6, commit = $7, desired = true,
				digest = $8, entry = $9, problem = $10, replicas = $12, held = $14, set_back = $15, updated_at = now(),
				generation = case when d.entry is distinct from $9 or d.set_back <> $15 then $11 else d.generation end,
				epoch = case when d.entry is distinct from $9 or d.set_back <> $15 then $13 else d.epoch end,
				tombstone = false, remove_volumes = false`,
			d.site, r.Name, r.ID, r.App, r.AppVersion, r.Profile, r.Commit, r.entry.Digest, r.encoded, r.Problem,
			generation, db.Replicas(r.entry.Placement), epoch, r.Hold.Proposal, r.setBack)
		if r.entry.Spec != nil {
			b.Queue(saveSpec, r.entry.Digest, r.entry.Spec)
		}
	}
	if len(d.renewed) > 0 {
		b.Queue(`update deployments set archived_at = null, placement = '', rejected = '{}', created_at = now()
			where site = $1 and name = any($2)`, d.site, d.renewed)
	}
	if len(d.removed) > 0 {
		// What never had an entry was never sent: it needs no tombstone.
		b.Queue(`update deployments set desired = false, entry = null, problem = '', held = '', set_back = false, placement = '', rejected = '{}', updated_at = now(),
				generation = case when entry is null then generation else $3 end,
				epoch = case when entry is null then epoch else $4 end,
				tombstone = tombstone or entry is not null
			where site = $1 and name = any($2)`, d.site, d.removed, generation, epoch)
	}
	if len(d.dropped) > 0 {
		b.Queue(`update deployments set tombstone = false, remove_volumes = false where site = $1 and name = any($2)`, d.site, d.dropped)
	}
	d.queueRequests(b, row)
	for _, r := range d.write {
		counted.Add(d.site, r.Name)
	}
	for _, name := range slices.Concat(d.renewed, d.removed) {
		counted.Add(d.site, protocol.DeploymentName(name))
	}
	for _, r := range d.repeated {
		counted.Add(d.site, r.Deployment)
	}
}
