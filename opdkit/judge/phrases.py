"""English phrases that the rules judge knows, as regular expressions, one meaning per line."""

import re


def compile_any(*patterns: str) -> re.Pattern[str]:
    """Return a pattern that matches where any of `patterns` does, in any case."""
    return re.compile("|".join(f"(?:{p})" for p in patterns), re.IGNORECASE)


# Phrases that only look negative, and what they are read as.
GOOD_NEWS = compile_any(
    r"\bnot (?:too |so |half )?bad(?: at all)?\b",
    r"\bcan'?t (?:complain|go wrong)\b",
    r"\bcouldn'?t be better\b",
    r"\b(?:nothing|not) (?:is )?wrong\b(?! with what)",
    r"\bno,? (?:that|this|it)(?:'s| is| was) (?:good|great|perfect|right|correct|wonderful|excellent)\b",
)
NO_NEWS = compile_any(
    r"\bno,? (?:problems?|worries|need|rush|hurry|doubt|idea|pressure|questions?|issues?|errors?)\b",
    r"\bno,? (?:mistakes?|complaints|offen[cs]e|biggie|longer|matter|more|thanks|thank you)\b",
    r"\bno,? (?:that|this|it)(?:'s| is| was| will be| would be) (?:all|it|everything|ok|okay|fine|alright)\b",
    r"\bno,? (?:i'?m|we'?re|i am|we are) (?:good|fine|all set|ok|okay|done)\b",
    r"\bnot (?:(?:a|an) (?:problem|issue|big deal)|sure|certain|only)\b",
    r"\bwithout (?:any )?(?:problems?|errors?|issues?)\b",
    r"\b(?:0 errors|never ?mind|don'?t worry)\b",
    r"\b(?:yes,? |yeah,? )?i know\b(?! what i (?:said|asked))",
    r"\bnothing (?:else|more|further)\b",
    r"\b(?:why|if|or) not\b",
    r"\b(?:what|anything|something)(?:'s| is| was)? wrong with (?:my|the|our|his|her|their)\b",
)

# How a reply ends that asks the user for something.
ASKS = compile_any(
    r"\?[\s*_)\"']*$",
    r"\b(?:please|kindly|could you|can you)(?: \w+){0,2} (?:confirm|provide|specify|choose|select|share|enter)\b",
    r"\b(?:please|kindly|could you|can you)(?: \w+){0,2} (?:indicate|decide|tell me|let me know)\b",
    r"\blet me know (?:how|which|what|where|when|whether|if you(?:'d| would))\b",
    r"\bif (?:so|yes|not)\b.*\bplease\b",
)
CLOSING_FORMULA = compile_any(
    r"\b(?:anything|something|nothing) else\b",
    r"\b(?:any|have) (?:\w+ )?(?:further|other|more) (?:questions?|concerns?|requests?|information|options)\b",
    r"\b(?:any|have) (?:\w+ )?(?:further|other|more) (?:assistance|help)\b",
    r"\b(?:need|require) (?:further|more|any) (?:help|assistance)\b",
    r"\bfeel free\b",
)

# Corrections that say what was wanted.
REPLY = (
    r"(?:that|this|it|you|your (?:answer|reply|response|explanation|summary|tone|code|version|message)|"
    r"the (?:answer|reply|response|explanation|summary|tone|text|output|result|code|last one))"
)
ABOUT_REPLY = REPLY + r"(?:'s|'re| is| are| was| were| sounds?| feels?| looks?| seems?| reads?)"
# Where a clause begins, and what may stand there before it gets to the point.
OPEN = r"(?:^|[.!;\n]\s*|,\s*(?:but )?|\bbut )"
LEAD = r"(?:(?:no|nope|please|pls|just|actually|ok|okay|well|hmm|and|but|so|instead|i said|can you|could you)[, ]+)*"
X = r"(?P<x>[^.!?;\n]+?)"
STOP = r"(?=\s*(?:[.!?;\n]|,? (?:but|because|since|so that|please|thanks|thank you)\b|$))"
_EMPHASIS = r"(?:already |just |clearly |specifically |explicitly |only |really |actually )*"
_POLITE = (
    r"(?!to (?:\w+ )?(?:confirm|ask|know|check|see|let|thank|discuss|make sure|say|understand|request|find out)\b)"
)

MANNERS = {
    "verbose|long|wordy|lengthy|long-winded|chatty|detailed": "Answer in fewer words: keep to what was asked.",
    "short|brief|terse|concise": "Answer at more length: explain the steps and give details.",
    "formal|stiff|stuffy": "Use a more casual tone.",
    "casual|informal|familiar": "Use a more formal tone.",
    "vague|generic|general": "Be specific: give names, numbers and concrete steps.",
    "complicated|complex|technical|confusing": "Explain it in simpler words.",
    "fast|hasty": "Go through it step by step.",
}
MANNER = compile_any(
    rf"{OPEN}{LEAD}(?:{ABOUT_REPLY} |)(?P<not>not |n't )?(?:(?:way|far|much|a bit|a little|kind of|still|just) )*"
    r"(?P<degree>too|very|so|overly|awfully) (?P<manner>[a-z-]+)"
)
COMPARATIVE = compile_any(
    rf"{OPEN}{LEAD}(?:make|keep|write) (?:it|that|this|them|your \w+) (?P<x>(?:(?:a bit|a little|much) )?"
    r"(?:more|less|(?!after|over|under|other|later)\w{3,}er|simple|short|brief|concise|formal|casual|clear|sound|look|"
    rf"into|as an?)\b[^.!?;\n]*?){STOP}"
)
BARE_COMPARATIVE = compile_any(
    rf"^{LEAD}(?P<x>(?:(?:much|a bit|a little) )?(?:shorter|longer|simpler|briefer|clearer|(?:more|less) [a-z]+))"
    r"(?:,? (?:please|pls))?[.! ]*$"
)
SAID = {
    compile_any(rf"{OPEN}(?P<lead>{LEAD})\b(?:i|we) {_EMPHASIS}{verb}{X}{STOP}"): hint
    for verb, hint in {
        r"(?:said|told you)(?: that)?:? ": "Go by what was said: {x}.",
        r"asked (?:you )?(?:for|to|about|if|whether|how|what|why|where|when|who|which) ": (
            "Do what the request says: {x}."
        ),
        rf"wanted {_POLITE}(?:you )?(?:to )?": "Aim for this: {x}.",
        r"meant (?:to say )?": "Take the request to mean: {x}.",
    }.items()
}
USE = compile_any(
    rf"{OPEN}(?P<lead>{LEAD})(?P<verb>use|try(?! to\b| again\b| and\b)|switch to|go with|stick to) {X}"
    rf"(?P<instead>,? instead)?{STOP}"
)
SHOULD = compile_any(
    rf"{OPEN}{LEAD}{REPLY} (?:really |definitely )?(?P<verb>should|shouldn't|must|mustn't|need to|needs to|have to|"
    rf"has to|ought to)(?P<not> not)? {X}{STOP}"
)
# "That should be all", "it should still work": what is likely, not what was wanted.
SUPPOSED = compile_any(
    r"(?:still|also|now|hopefully|all|it|work|help|do|suffice)\b",
    r"be (?:all|it|fine|ok|okay|good|great|enough|possible|easy|still|sufficient)\b",
)
DONT = compile_any(
    rf"{OPEN}{LEAD}(?:don't|do not|stop|quit|never) (?P<x>(?:\w+ing|use|add|include|change|write|put|give|repeat|"
    rf"apologi[sz]e|explain|do|make|touch|remove|delete)\b[^.!?;\n]*?){STOP}"
)
NOT_THAT = compile_any(rf"{OPEN}(?:no|nope|not that)[, ]+{X},? instead\b")
OBJECTS = compile_any(r"\b(?:no|nope|actually|instead|i said)\b")

# Complaints that do not say what was wanted.
# Not the relative pronoun: "a flight that isn't full" is no complaint, "but that isn't it" is one.
_BEFORE_THAT = ("but", "and", "think", "no", "so", "sorry", "wait", "now", "well", "actually", "oh")
_THAT = r"(?:(?<![a-z] )|" + "|".join(rf"(?<=\b{word} )" for word in _BEFORE_THAT) + ")that"
_SUBJECT = r"\b" + REPLY.replace("(?:that|", f"(?:{_THAT}|", 1)
_IS = r"(?:'s| is| was|'re| are| were)?"
COMPLAINT = compile_any(
    rf"{_SUBJECT}{_IS}(?: still| just| completely| totally| simply| all| so| really| also)* (?:wrong|incorrect|bad|"
    r"terrible|awful|horrible|useless|unhelpful|nonsense|garbage|rubbish|broken|false|inaccurate|ridiculous|mistaken|"
    r"unacceptable|outdated)\b",
    rf"{_SUBJECT}{_IS} ?(?:not|n't)(?: at all| quite| even| really| very| exactly)* (?:right|correct|true|good|great|"
    r"helpful|what|how|working|enough|acceptable|accurate|the|it\b|my)",
    rf"{_SUBJECT} (?:still |just |really |also )*(?:doesn't|does not|didn't|did not|don't|won't|isn't|can't|fails?|"
    r"failed|crash(?:es|ed)|breaks?|broke|makes no sense|throws?|errors? out)\b",
    r"\b(?:still|but it|but that|now it) (?:not|doesn't|does not|didn't|fails?|crash(?:es)?|broken|wrong|isn't)\b",
    r"\bstill get(?:ting)?\b",
    r"\byou(?:'ve| have)? (?:forgot|forgotten|missed|ignored|misunderst(?:ood|and)|misread|skipped|overlooked)\b",
    r"\byou(?:'ve| have)? (?:broke|lied|removed|deleted|left out|left off|mixed up|hallucinated|keep \w+ing)\b",
    r"\byou(?:'ve| have)? (?:made (?:a|another|the same) (?:mistake|error)|got (?:it|that|this|the \w+) wrong)\b",
    r"\b(?:you(?: still)? haven'?t|not what i|that'?s not (?!a|an|too))\b",
    r"\b(?:neither|none) of (?:those|these|them)\b",
    r"\bwhy (?:did|do|would|are|were) you\b",
    r"\b(?:makes? no sense|i don'?t understand (?:that|this|your|what)|what do you mean)\b",
    r"\bnot (?:helpful|useful|good enough|correct|right|quite)\b",
    r"\bthanks for nothing\b",
    r"\bi (?:hate|dislike|don'?t (?:like|want)) (?:it|that|this|your)\b",
    r"\bi (?:didn'?t (?:ask for|ask you|say|mean)|never (?:asked|said))\b",
    r"\bwtf\b",
    rf"{OPEN}{LEAD}(?:redo|revert|undo|rewrite|rephrase|shorten|simplify|change|fix) (?:it|that|this|your|the last)\b",
    rf"{OPEN}{LEAD}(?:(?:do (?:it|that) again|try again)\b)",
)
OPENING_COMPLAINT = compile_any(
    r"^\W*(?:wrong|incorrect|false|nonsense|terrible|bad|awful|useless|nope|not (?:that|this|it|like that))\b"
)
NO = re.compile(r"^\W*(?:no+|nope|nah)\b[\s,.!:-]*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)

# Praise, and what says nothing.
PRAISE = compile_any(
    r"\bthank(?:s| you)\b",
    r"\b(?:thx|ty|tysm|cheers|lgtm)\b",
    r"\b(?:perfect|awesome|excellent|wonderful|fantastic|amazing|brilliant|superb|beautiful|terrific|marvelous)\b",
    r"^\W*(?:great|nice|good|cool|lovely|exactly|wow|yay|yes!+)\b",
    r"\b(?:(?:good|great|nice) (?:job|work|one)|well done)\b",
    r"\b(?:that|it|this|everything|all)(?: (?:now|finally|also))? work(?:s|ed)\b",
    r"\bworks? (?:now|great|fine|well|perfectly)\b",
    r"\b(?:that|this|it)(?:'s| is| was| looks?| sounds?| seems?)(?: \w+)? (?:good|great|right|correct|nice|helpful|"
    r"useful|clear|exactly|spot on)\b",
    r"\b(?:looks?|sounds?) (?:very |really )?(?:good|great|nice|right)\b",
    r"\bspot on\b",
    r"\b(?:you're|you are) (?:the best|a lifesaver|a monster|amazing|great)\b",
    r"\blove (?:it|this|that)\b",
    r"\b(?:very|really|so|super|extremely) (?:helpful|useful|clear)\b",
    r"\b(?:got it|makes sense|solved)\b",
    r"\bgood\b(?= *[.!]*$)",
    r"\bi appreciate (?:it|that|this|your|you)\b",
)
NO_PRAISE = compile_any(
    r"\b(?:not|n't|isn't|would be|will be|to be|be|how|less|hardly|if (?:it|that|this)(?: is|'s)) (?:\w+ )?(?:correct|"
    r"right|perfect|awesome|excellent|wonderful|great|good|nice|helpful|amazing|useful)\b",
    r"^\W*(?:great|good|nice) (?:question|morning|afternoon|evening|day|point)\b",
    r"\b(?:thanks|thank you) (?:in advance|anyway)\b",
)
BARE = compile_any(
    r"\W*(?:(?:ok|okay|k|fine|sure|yes|yeah|yep|yup|no|nope|nah|alright|all right|right|hm+|mhm|i see|understood|"
    r"noted|please|go ahead|continue|proceed|do it|go on)\b\W*)+"
)
