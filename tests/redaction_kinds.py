"""Labelled secrets and personal data: invented strings in the documented format of each kind, as people write them.

The random parts are drawn when the module is imported, and prefixes are joined there, so that no file holds a string
that a scanner takes for a live secret. In a text, what has to be replaced stands between « and ». Cases 0, 2, 4, ...
of a kind were looked at while the rules were written; cases 1, 3, 5, ... were held out and looked at once.
"""

import base64
import random
import re
import string
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

Case = tuple[str, tuple[str, ...]]  # a text, and the secrets that must not remain in it
LETTERS, DIGITS, HEX = string.ascii_letters, string.digits, "0123456789abcdef"
ALNUM, LOWER, URLSAFE = LETTERS + DIGITS, string.ascii_lowercase + DIGITS, LETTERS + DIGITS + "_-"
BASE64, UPPER = LETTERS + DIGITS + "+/", string.ascii_uppercase + DIGITS

# Where a token may stand: in a sentence, a settings file, JSON, code, a header, or brackets.
PLACES = (
    "use «{}» for this",
    "here is my token: «{}», please try again",
    "export {N}=«{}»",
    '{"name": "x", "token": "«{}»"}',
    "It is `«{}»`.",
    "I set it to «{}».",
    "settings.yaml:\n  {n}: '«{}»'\n",
    'client = Client("«{}»", timeout=3)',
    "(the old one, «{}»)",
    "curl -H 'X-Token: «{}»' https://api.example.com/v1",
)
# A token without a shape of its own has its name next to it.
NAMED = (
    "{N}=«{}»",
    '{"{n}": "«{}»"}',
    "{n}: «{}»\n",
    "export {N}='«{}»' && run",
    'os.environ["{N}"] = "«{}»"',
    '{n} = "«{}»"',
    "{n}: '«{}»'",
    "my {n} is: «{}»",
)

# kind -> the name of its setting, and the parts of the token: literal text, or (alphabet, length).
TOKENS = {
    "OpenAI key": ("OPENAI_API_KEY", "sk", "-", (ALNUM, 48)),
    "OpenAI project key": ("OPENAI_API_KEY", "sk", "-proj-", (URLSAFE, 74), "T3Blbk", "FJ", (URLSAFE, 74)),
    "Anthropic key": ("ANTHROPIC_API_KEY", "sk", "-ant-", "api03-", (URLSAFE, 93), "AA"),
    "OpenRouter key": ("OPENROUTER_API_KEY", "sk", "-or-v1-", (HEX, 64)),
    "DeepSeek key": ("DEEPSEEK_API_KEY", "sk", "-", (HEX, 32)),
    "Groq key": ("GROQ_API_KEY", "gs", "k_", (ALNUM, 52)),
    "xAI key": ("XAI_API_KEY", "xa", "i-", (ALNUM, 80)),
    "Replicate token": ("REPLICATE_API_TOKEN", "r", "8_", (ALNUM, 37)),
    "Hugging Face token": ("HF_TOKEN", "h", "f_", (LETTERS, 34)),
    "Perplexity key": ("PERPLEXITY_API_KEY", "ppl", "x-", (ALNUM, 48)),
    "Fireworks key": ("FIREWORKS_API_KEY", "fw", "_", (ALNUM, 22)),
    "Google API key": ("GOOGLE_API_KEY", "AI", "za", (URLSAFE, 35)),
    "Google OAuth access token": ("GOOGLE_TOKEN", "ya", "29.", (URLSAFE, 120)),
    "Google OAuth refresh token": ("REFRESH_TOKEN", "1/", "/0", (URLSAFE, 60)),
    "Google OAuth client secret": ("CLIENT_SECRET", "GOC", "SPX-", (URLSAFE, 28)),
    "AWS access key id": ("AWS_ACCESS_KEY_ID", "AK", "IA", (string.ascii_uppercase + "234567", 16)),
    "AWS temporary key id": ("AWS_ACCESS_KEY_ID", "AS", "IA", (string.ascii_uppercase + "234567", 16)),
    "Azure client secret": ("AZURE_CLIENT_SECRET", (ALNUM, 3), "8", "Q~", (ALNUM, 34)),
    "GitHub token": ("GITHUB_TOKEN", "gh", "p_", (ALNUM, 36)),
    "GitHub fine-grained token": ("GITHUB_TOKEN", "github", "_pat_", (ALNUM, 22), "_", (ALNUM, 59)),
    "GitHub app token": ("GITHUB_TOKEN", "gh", "s_", (ALNUM, 36)),
    "GitLab token": ("GITLAB_TOKEN", "gl", "pat-", (URLSAFE, 20)),
    "GitLab runner token": ("RUNNER_TOKEN", "gl", "rt-", (URLSAFE, 20)),
    "GitLab runner registration": ("REGISTRATION_TOKEN", "GR", "1348941", (URLSAFE, 20)),
    "npm token": ("NPM_TOKEN", "np", "m_", (ALNUM, 36)),
    "PyPI token": ("TWINE_PASSWORD", "py", "pi-AgEIcHlwaS5vcmc", (URLSAFE, 120)),
    "RubyGems key": ("GEM_HOST_API_KEY", "ruby", "gems_", (HEX, 48)),
    "Docker token": ("DOCKER_TOKEN", "dck", "r_pat_", (URLSAFE, 27)),
    "Slack bot token": ("SLACK_TOKEN", "xo", "xb-", (DIGITS, 12), "-", (DIGITS, 13), "-", (ALNUM, 24)),
    "Slack user token": ("TOKEN", "xo", "xp", *("-", (DIGITS, 12)) * 3, "-", (HEX, 32)),
    "Slack app token": ("SLACK_APP_TOKEN", "xa", "pp-1-", (UPPER, 11), "-", (DIGITS, 13), "-", (HEX, 64)),
    "Slack webhook": ("URL", "https://hooks", ".slack.com/services/T", (UPPER, 22), "/", (ALNUM, 24)),
    "Discord bot token": ("DISCORD_TOKEN", "MT", (ALNUM, 24), ".", (URLSAFE, 6), ".", (URLSAFE, 38)),
    "Discord webhook": ("WEBHOOK", "https://discord.com/api/", "webhooks/", (DIGITS, 18), "/", (URLSAFE, 68)),
    "Telegram bot token": ("TELEGRAM_TOKEN", (DIGITS[1:], 10), ":AA", (URLSAFE, 33)),
    "Twilio key": ("TWILIO_API_KEY", "S", "K", (HEX, 32)),
    "SendGrid key": ("SENDGRID_API_KEY", "S", "G.", (URLSAFE, 22), ".", (URLSAFE, 43)),
    "Mailgun key": ("MAILGUN_API_KEY", "ke", "y-", (HEX, 32)),
    "Mailchimp key": ("MAILCHIMP_API_KEY", (HEX, 32), "-us", (DIGITS[1:], 2)),
    "Stripe secret key": ("STRIPE_KEY", "sk", "_live_", (ALNUM, 24)),
    "Stripe restricted key": ("STRIPE_KEY", "rk", "_live_", (ALNUM, 99)),
    "Stripe webhook secret": ("STRIPE_WEBHOOK", "wh", "sec_", (ALNUM, 32)),
    "Square token": ("SQUARE_TOKEN", "EA", "AA", (URLSAFE, 60)),
    "PayPal Braintree token": ("BRAINTREE", "access", "_token$production$", (LOWER, 16), "$", (HEX, 32)),
    "Shopify token": ("SHOPIFY_TOKEN", "sh", "pat_", (HEX, 32)),
    "DigitalOcean token": ("DO_TOKEN", "do", "p_v1_", (HEX, 64)),
    "Databricks token": ("DATABRICKS_TOKEN", "da", "pi", (HEX, 32)),
    "Vault token": ("VAULT_TOKEN", "hv", "s.", (URLSAFE, 95)),
    "Linear key": ("LINEAR_API_KEY", "li", "n_api_", (ALNUM, 40)),
    "Notion token": ("NOTION_TOKEN", "nt", "n_", (DIGITS, 11), (ALNUM, 35)),
    "Notion secret": ("NOTION_TOKEN", "secr", "et_", (ALNUM, 43)),
    "Sentry user token": ("SENTRY_AUTH_TOKEN", "snt", "ryu_", (HEX, 64)),
    "Sentry DSN": ("SENTRY_DSN", "https://", (HEX, 32), "@o", (DIGITS, 6), ".ingest.sentry.io/", (DIGITS, 7)),
    "New Relic key": ("NEW_RELIC_API_KEY", "NR", "AK-", (UPPER, 27)),
    "Grafana token": ("GRAFANA_TOKEN", "gl", "sa_", (ALNUM, 32), "_", (HEX, 8)),
    "Atlassian token": ("ATLASSIAN_TOKEN", "AT", "ATT3", (URLSAFE, 186)),
    "Bitbucket app password": ("BITBUCKET_TOKEN", "AT", "BB", (ALNUM, 32)),
    "Airtable token": ("AIRTABLE_TOKEN", "pa", "t", (ALNUM, 14), ".", (HEX, 64)),
    "Figma token": ("FIGMA_TOKEN", "fi", "gd_", (URLSAFE, 40)),
    "Postman key": ("POSTMAN_API_KEY", "PM", "AK-", (HEX, 24), "-", (HEX, 34)),
    "Terraform Cloud token": ("TFE_TOKEN", (ALNUM, 14), ".atlas", "v1.", (URLSAFE, 67)),
    "Pulumi token": ("PULUMI_ACCESS_TOKEN", "pu", "l-", (HEX, 40)),
    "Doppler token": ("DOPPLER_TOKEN", "dp.", "pt.", (ALNUM, 43)),
    "PlanetScale token": ("PLANETSCALE_TOKEN", "psc", "ale_tkn_", (URLSAFE, 43)),
    "Supabase token": ("SUPABASE_ACCESS_TOKEN", "sb", "p_", (HEX, 40)),
    "Netlify token": ("NETLIFY_AUTH_TOKEN", "nf", "p_", (ALNUM, 36)),
    "Fly.io token": ("FLY_API_TOKEN", "fo", "1_", (URLSAFE, 43)),
    "Facebook token": ("FB_TOKEN", "EA", "AC", (ALNUM, 170)),
    "Twitter bearer": ("TWITTER_BEARER", "A" * 22, (ALNUM, 90)),
    "1Password secret key": ("OP_KEY", "A", "3-", (UPPER, 6), "-", (UPPER, 11), *("-", (UPPER, 5)) * 3),
    "age secret key": ("AGE_KEY", "AGE-", "SECRET-KEY-1", ("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)),
    "JWT": ("ID_TOKEN", "ey", "JhbGciOiJIUzI1NiJ9.ey", "J", (ALNUM, 60), ".", (URLSAFE, 43)),
}  # fmt: skip
NAMED_TOKENS = {
    "AWS secret key": ("aws_secret_access_key", (BASE64, 40)),
    "AWS session token": ("aws_session_token", "FwoG", (BASE64, 300), "=="),
    "Cohere key": ("cohere_api_key", (ALNUM, 40)),
    "Mistral key": ("mistral_api_key", (ALNUM, 32)),
    "Together key": ("together_api_key", (HEX, 64)),
    "W&B key": ("wandb_api_key", (HEX, 40)),
    "Azure OpenAI key": ("azure_openai_api_key", (HEX, 32)),
    "Azure storage key": ("AccountKey", (BASE64, 86), "=="),
    "Twilio auth token": ("twilio_auth_token", (HEX, 32)),
    "Heroku key": ("heroku_api_key", (HEX, 8), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 12)),
    "Cloudflare token": ("cloudflare_api_token", (URLSAFE, 40)),
    "Datadog key": ("datadog_api_key", (HEX, 32)),
    "Vercel token": ("vercel_token", (ALNUM, 24)),
    "Okta token": ("okta_api_token", "00", (URLSAFE, 40)),
    "Snyk token": ("snyk_token", (HEX, 8), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 12)),
    "Dropbox token": ("dropbox_access_token", "s", "l.", (URLSAFE, 135)),
    "Asana token": ("asana_access_token", (HEX, 32)),
    "Algolia key": ("algolia_api_key", (HEX, 32)),
    "client secret": ("client_secret", (ALNUM, 40)),
    "signing key": ("signing_key", (HEX, 64)),
}

BODY = "\n".join("".join(random.Random(n).choices(BASE64, k=64)) for n in range(12))
ALPHABETS = {"a": ALNUM, "b": BASE64, "h": HEX, "u": URLSAFE, "U": string.ascii_uppercase + "234567"}
PARTS = {
    "BODY": BODY,
    "LINES": BODY[:200],
    "LINE": BODY[:64],
    "RSA": "RSA PRIVATE" + " KEY",
    "SSH": "OPENSSH PRIVATE" + " KEY",
    "PGP": "PGP PRIVATE KEY" + " BLOCK",
    "PUTTY": "PuTTY-User-Key" + "-File-3: ssh-ed25519\nEncryption: none\nComment: me\nPublic-Lines: 2\nAAAA\nBBBB\n",
    "BASIC": base64.b64encode(b"admin:hunter2-Xy9").decode(),
}
TEXTS = tomllib.loads(Path(__file__).with_name("redaction_texts.toml").read_text(encoding="utf-8"))


def draw(rng: random.Random, parts: tuple[str | tuple[str, int], ...]) -> str:
    return "".join(part if isinstance(part, str) else "".join(rng.choices(part[0], k=part[1])) for part in parts)


def mark(text: str) -> Case:
    """Return a marked text without its marks, as a log holds it, and the secrets that have to go."""
    secrets = tuple(piece.split("»")[0] for piece in text.split("«")[1:])
    return text.replace("«", "").replace("»", ""), secrets


def cases(kind: str) -> Iterator[Case]:
    """Yield all cases of one kind, the same at each call."""
    rng = random.Random(f"a kind: {kind}")

    def fill(match: re.Match[str]) -> str:
        if match[1] in PARTS:
            return PARTS[match[1]]
        return draw(rng, ((ALPHABETS[match[1][0]], int(match[1][1:])),))

    for text in TEXTS.get(kind, ()):
        yield mark(re.sub(r"\{([A-Z]{3,}|[abhuU][0-9]+)\}", fill, text if "URL" in kind else text.replace("~", "")))
    name, *parts = (TOKENS | NAMED_TOKENS).get(kind, ("",))
    for place in (PLACES if kind in TOKENS else NAMED) if parts else ():
        filled = place.replace("{N}", name.upper()).replace("{n}", name.lower())
        yield mark(filled.replace("{}", draw(rng, tuple(parts))))


KINDS = (*TOKENS, *NAMED_TOKENS, *TEXTS)


def is_left(secret: str, text: str) -> bool:
    """Return whether `text` still holds half of the secret, or four of its characters, whichever is more."""
    text = re.sub(r"\[[a-z ]+\]", " ", text)  # "[password]" holds "pass"
    size = max(4, (len(secret) + 1) // 2)
    return any(secret[i : i + size] in text for i in range(max(1, len(secret) - size + 1)))


# The rows of the table in docs/logs.md: name -> the last kind of the row, in the order of KINDS.
ROWS = {
    "keys of language models": "Fireworks key",
    "keys of clouds": "Azure client secret",
    "code hosts and package registries": "Docker token",
    "chat, mail and telephone services": "Mailchimp key",
    "payment services and shops": "Shopify token",
    "other services, with a prefix": "JWT",
    "keys without a shape, by their names": "signing key",
    "private keys": "GCP service account",
    "passwords in settings, code and sentences": "PIN and one-time code",
    "passwords on command lines": "curl -u",
    "headers and cookies": "session cookie",
    "URLs and connection strings": "npmrc",
    "e-mail addresses": "email spelt out",
    "phone numbers": "phone, China",
    "cards, IBANs, SSNs": "SSN",
    "IP and MAC addresses": "MAC",
    "birth dates": "date of birth",
    "coordinates and street addresses": "street address",
    "other numbers of people": "Chinese id card",
    "keys beside a letter, broken, encoded": "key percent-encoded",
    "of all kinds, written after the rules": "written after the rules",
}

BEFORE = (
    60,
    42,
    62,
    36,
    20,
    34,
    72,
    6,
    0,
    0,
    5,
    12,
    16,
    16,
    0,
    0,
    0,
    0,
    0,
    1,
    25,
)  # per row: strings that were replaced before the rules of gitleaks and others were added


def recall_table(redact: Callable[[str], str]) -> str:
    """Return the table of docs/logs.md: kinds and strings of each row, and how many strings `redact` replaces."""
    lines, start = ["| kinds | how many | strings | replaced before | replaced now |", "|---|---|---|---|---|"], 0
    for (name, last), before in zip(ROWS.items(), BEFORE, strict=True):
        kinds = KINDS[start : (start := KINDS.index(last) + 1)]
        found = [not any(is_left(s, redact(text)) for s in secrets) for k in kinds for text, secrets in cases(k)]
        lines.append(f"| {name} | {len(kinds)} | {len(found)} | {before} | {sum(found)} |")
    return "\n".join(lines)
