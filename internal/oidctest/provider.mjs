// An OpenID provider for tests. Its arguments: the folder of node_modules with oidc-provider, and a file with what is to
// be served (JSON): port, jwks, accounts (claims by subject), idTokenSeconds.
// Who signs in is whom the header X-Test-Account names: the browser is played by the test.
import { createServer } from 'node:http';
import { createServer as createTLSServer } from 'node:https';
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [modules, file] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`));
const config = JSON.parse(readFileSync(file, 'utf8'));
const { issuer } = config;

const provider = new Provider(issuer, {
  jwks: config.jwks,
  clients: [{
    client_id: 'colony', application_type: 'native', token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
    redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'],
  }, {
    client_id: 'robot', client_secret: 'robots-only', grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
  }],
  claims: { openid: ['sub'], profile: ['preferred_username'], groups: ['groups'] },
  scopes: ['openid', 'offline_access', 'profile', 'groups'],
  conformIdTokenClaims: false,
  pkce: { required: () => true, methods: ['S256'] },
  ttl: { IdToken: config.idTokenSeconds, AccessToken: 600, DeviceCode: 600, RefreshToken: 3600, Session: 3600, Grant: 3600, Interaction: 600, ClientCredentials: 600 },
  features: {
    devInteractions: { enabled: false },
    deviceFlow: { enabled: true },
    clientCredentials: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (ctx, resource) => ({ scope: 'fleet', audience: resource, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } } }),
    },
  },
  extraTokenClaims: (ctx, token) => (token.kind === 'ClientCredentials' ? { groups: ['robots'] } : undefined),
  findAccount: (ctx, id) => config.accounts[id] && { accountId: id, claims: () => ({ ...config.accounts[id], sub: id }) },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
});

async function interact(req, res) {
  const { prompt, params, session } = await provider.interactionDetails(req, res);
  if (prompt.name === 'login') {
    await provider.interactionFinished(req, res, { login: { accountId: req.headers['x-test-account'] } });
    return;
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  await provider.interactionFinished(req, res, { consent: { grantId: await grant.save() } });
}

const serve = provider.callback();
const handle = (req, res) => {
  if (req.url.startsWith('/interaction/')) {
    interact(req, res).catch((err) => { console.error(err); res.statusCode = 500; res.end(String(err)); });
  } else {
    serve(req, res);
  }
};
const server = config.chain ? createTLSServer({ cert: readFileSync(config.chain), key: readFileSync(config.key) }, handle) : createServer(handle);
server.listen(config.port, '127.0.0.1', () => console.log(`serves ${issuer}`));
