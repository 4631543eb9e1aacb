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
    r"\bno,? (?:problems?|worries|need(?! to)|rush|hurry|doubt|idea|pressure|questions?|issues?|errors?)\b",
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
    r"\blet me know (?:how|which|what|where|when|whether|your|if you(?:'d| would))\b",
    r"\bonce you (?:confirm|provide|choose|decide|select|let me know)\b",
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
_WORDS = r"(?:[^.!?;\n]|\.(?=\w))+?"  # within a clause, with the dot of "3.8"
X = f"(?P<x>{_WORDS})"
STOP = r"(?=\s*(?:[.!?;\n]|,? (?:but|because|since|please|thanks|thank you)\b|$))"
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
# What a reply is made of, and the forms that it can have.
_PART = (
    r"(?:words?|sentences?|paragraphs?|titles?|headings?|sections?|intro(?:duction)?|conclusions?|ending|greetings?|"
    r"pleasantries|disclaimers?|caveats?|jargon|emojis?|bullets?|explanations?|comments?|apolog(?:y|ies)|filler|"
    r"small talk|abbreviations?|examples?|summary|footnotes?)"
)
_FORM = (
    r"(?:list|table|steps|bullets|bullet points|sentences?|paragraphs?|words?|json|csv|yaml|markdown|version|tone|"
    r"format|style|clock|units|examples|numbers|digits|story)"
)
_IT = (
    r"(?:it|that|this|them|these|those|your \w+|the (?:answer|reply|response|explanation|summary|text|result|results|"
    r"output|last one|whole thing)|everything)(?: to me| for me)?"
)
_AS = (
    r"(?:as|like|without|using|from (?:the|a)|with (?!me\b|my\b|him\b|her\b)|"
    r"in (?!(?:my|your|our|the|time|two|five|ten|\d+)\b|an? (?:file|folder|hour|minute|moment|day|week|while)\b)|"
    r"in the (?:past|present|style|form|first|second|third|active|passive))\b"
)
_WISH = r"(?:i|we)(?P<wish>(?:'d| would)? (?:need|want|use)|(?:'d| would) like)"
_ASK_YOU = r"(?:(?:can|could|would|will) (?:you|u) (?:please )?)?"
_FEW = r"[^\s.!?;,:]+(?: [^\s.!?;,:]+){0,5}?(?:, no [^\s.!?;,:]+)?"  # words, and perhaps "..., no numbers"
_END = r"(?:,? (?:please|pls|thanks)(?:,[^.!?\n]*)?)?[.! ]*$"


# A pattern from where a clause begins, and the hint that it gives.
_CLAUSES = (
    (
        rf"(?:make|keep|write) (?:it|that|this|them|your \w+) (?P<x>(?:(?:a bit|a little|much) )?(?:more|less|"
        rf"(?!after|over|under|other|later)\w{{3,}}er|simple|short|brief|concise|formal|casual|clear|sound|look|into|an?|"
        rf"as an?)\b[^.!?;\n]*?){STOP}",
        "Make the reply {x}.",
    ),
    (rf"(?:i|we) {_EMPHASIS}(?:said|told you)(?: that)?:? {X}{STOP}", "Go by what was said: {x}."),
    (
        rf"(?:i|we) {_EMPHASIS}asked (?:you )?(?:for|to|about|if|whether|how|what|why|where|when|who|which|not to) {X}"
        rf"{STOP}",
        "Do what the request says: {x}.",
    ),
    (rf"(?:i|we) {_EMPHASIS}wanted {_POLITE}(?:you )?(?:to )?{X}{STOP}", "Aim for this: {x}."),
    (rf"(?:i|we) (?:was|were) (?:hoping for|expecting) {X}{STOP}", "Aim for this: {x}."),
    (rf"(?:i|we) {_EMPHASIS}meant (?:to say )?{X}{STOP}", "Take the request to mean: {x}."),
    (rf"(?:i|we)(?:'d| would)? (?P<wish>prefer|rather have|rather see|rather you) {X}{STOP}", "Aim for this: {x}."),
    (rf"{_WISH} (?P<x>{_IT} {_AS}[^.!?;\n]*?){STOP}", "Aim for this: {x}."),
    (
        rf"{_WISH} (?!to\b)(?P<x>[^.!?;,\n]+?(?:, ?not|,? rather than|"
        rf",? instead of) [^.!?;\n]+?){STOP}",
        "Aim for this: {x}.",
    ),
    (
        rf"{_WISH} (?!to\b)(?P<x>(?:[\w'-]+ ){{0,4}}?{_FORM}){_END}",
        "Aim for this: {x}.",
    ),
    (
        rf"(?P<verb>use|try(?! to\b| again\b| and\b)|switch to|go with|stick to) (?!the following)"
        rf"(?!(?:[\w']+ ){{1,3}}(?:below|above|to \w+)\b){X}(?P<instead>,? instead)?{STOP}",
        "{verb} {x}.",
    ),
    (
        rf"{_ASK_YOU}(?:answer|reply|respond|speak|talk|write)(?: to me)? (?P<x>(?:{_AS}|only) [^.!?;:\n]+?){STOP}",
        "Answer {x}.",
    ),
    (
        rf"{_ASK_YOU}(?P<verb>say|write|put|give|show|phrase|rephrase|format|do|make|explain|rewrite|redo|present|state|"
        rf"tell|need) (?P<it>{_IT}) (?P<x>{_AS} ?[^.!?;\n]*?){STOP}",
        "{verb} {it} {x}.",
    ),
    (rf"{_ASK_YOU}(?P<verb>be|go into) (?P<x>(?:a bit |a little )?(?:more|less) [^.!?;\n]+?){STOP}", "{verb} {x}."),
    (rf"{_ASK_YOU}(?P<verb>avoid|focus on|limit|include|mention|cite) {X}{STOP}", "{verb} {x}."),
    (rf"{_ASK_YOU}(?P<verb>keep) (?P<x>(?:it|this|that|them|(?:the|your) \w+) (?:to|under|below|within|short|simple|"
     rf"brief)\b[^.!?;\n]*?){STOP}", "{verb} {x}."),
    (rf"(?P<x>(?:the|your|all) (?:\w+ )?{_PART} (?:should|must|needs? to|ha(?:s|ve) to) {_WORDS}){STOP}", "{x}."),
    (rf"{_ASK_YOU}(?P<verb>number|format|sort|label) (?P<x>the (?:steps|items|list|results?|answers?|output|"
     rf"entries|points|names|numbers|rows|columns|table|dates?|times?)\b[^.!?;:\n]*?){STOP}", "{verb} {x}."),
    (
        rf"(?:{_ASK_YOU}|you (?:can|could|may) )(?P<verb>remove|replace|change|skip|drop|cut|omit|leave out|delete|"
        rf"keep|shorten|expand|rephrase|rewrite|reword) (?P<x>(?:the |your |all |any |out )*(?:[\w'-]+ ){{0,3}}?"
        rf"{_PART}\b[^.!?;\n]*?){STOP}",
        "{verb} {x}.",
    ),
    (
        rf"(?:there(?:'s| is) )?no need to (?!worry|thank|hurry|rush|do\b|be\b){X}{STOP}",
        "There is no need to {x}.",
    ),
    (
        rf"(?P<when>always|next time|in (?:the )?future|from now on),? (?!i\b|we\b|you\b){X}{STOP}",
        "{when}: {x}.",
    ),
    (rf"let'?s (?P<x>(?:use|do|go with|try|take) [^.!?;\n]*? instead\b[^.!?;\n]*?){STOP}", "{x}."),
    (rf"(?P<x>[\w'][^.!?;\n]*? from now on){STOP}", "{x}."),
    (rf"(?:it|that|this|you)(?:'s|'re| is| was| were| are) supposed to {X}{STOP}(?!\s*\?)",
     "The reply was supposed to {x}."),
    (rf"(?P<x>(?:a|one|two|three|\d+) (?:[\w-]+ ){{0,2}}?{_FORM}) (?:is|are|would be) enough{_END}", "Keep to {x}."),
    (rf"it(?:'d| would) be (?:better|nicer|more helpful) (?P<x>(?:with|as|in|without) [^.!?;\n]+?){STOP}",
     "It would be better {x}."),
)  # fmt: skip
# Messages of a few words that say nothing else: "In Celsius, please.", "Just the name.", "Fahrenheit, not Celsius."
_PLEASE = r"(?=,? (?:please|pls)\b)"
_FRAGMENTS = (
    r"(?:(?:much|a bit|a little) )?(?:shorter|longer|simpler|briefer|clearer|(?:more|less|fewer) [a-z]+)",
    rf"(?:in|as|on|with|without|using) (?!my\b|me\b){_FEW}{_PLEASE}",
    rf"(?:just|only) (?!\w+ing\b|curious|if\b|when\b|because|me\b|now\b|a (?:sec|moment|minute)){_FEW}",
    rf"no {_FEW}{_PLEASE}",
    rf"(?!(?:i|it|that|this|he|she|they|we|you|yes|yeah|ok|well)\b){_FEW}, (?:and )?not {_FEW}",
    rf"(?:[\w'-]+ ){{0,4}}?{_FORM}{_PLEASE}",
    r"step by step|word for word|one at a time",
)
# Patterns in the order in which they are tried, and the hint that each of them gives.
INSTRUCTIONS = {compile_any(rf"{OPEN}(?P<lead>{LEAD}){pattern}"): hint for pattern, hint in _CLAUSES} | {
    compile_any(rf"^(?P<lead>{LEAD})(?P<x>{pattern}){_END}"): "Answer like this: {x}." for pattern in _FRAGMENTS
}
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
    rf"{OPEN}{LEAD}(?P<verb>don't|do not|stop|quit|never) (?P<x>(?:\w+ing|use|add|include|change|write|put|give|repeat|"
    rf"apologi[sz]e|explain|do|make|touch|remove|delete)\b[^.!?;\n]*?){STOP}"
)
NOT_THAT = compile_any(rf"{OPEN}(?:no|nope|not that)[, ]+{X},? instead\b")
# A tool's error that names the argument which was missing.
MISSING_ARGUMENT = compile_any(
    r"\bmissing (?:\d+ )?(?:a |the )?(?:required )?(?:positional |keyword-only )?(?:argument|parameter|field|property)"
    r"s?:? ['\"`]?(?P<named>[a-z_][\w.]*)",
    r"(?:['\"`](?P<quoted>\w+)['\"`]|\b(?P<bare>[a-z]\w*_\w+)) is (?:a )?required\b",
)
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
    r"\b(?:still|again) (?:the|that) same (?:\w+ )?(?:error|problem|issue|mistake|result|answer)\b",
    r"\bi(?:'m)? (?:now )?(?:get|getting|got|see) (?:this|an?|the same|that) (?:\w+ )?(?:error|exception|traceback)\b",
    r"\byou(?:'re| are)(?: still)? not (?:listening|helping|answering|reading|making sense|getting it)\b",
    r"\byou (?:already|just) (?:said|told|suggested|tried|asked) (?:me )?(?:that|this|it)\b",
    r"\bthe (?:link|url|code|script|command|example|formula|math|date|year|total|output|spelling|quote) (?:is|was) "
    r"(?:still )?(?:wrong|broken|incorrect|outdated|off|dead)\b",
    r"\byour (?:answer|reply|response) contradicts\b",
    r"\bi(?:'m| am) (?:\w+ )?disappointed\b",
    r"\byou(?:'ve| have)? (?:forgot|forgotten|missed|ignored|misunderst(?:ood|and)|misread|skipped|overlooked)\b",
    r"\byou(?:'ve| have)? (?:broke|lied|removed|deleted|left out|left off|mixed up|hallucinated|keep \w+ing)\b",
    r"\byou(?:'ve| have)? (?:made (?:a|another|the same) (?:mistake|error)|got (?:it|that|this|the \w+) wrong)\b",
    r"\b(?:you(?: still)? haven'?t|not what i|that'?s not (?!a|an|too))\b",
    r"\b(?:neither|none) of (?:those|these|them)\b",
    r"\bwhy (?:did|do|would|are|were) you\b",
    r"\bi (?:don'?t|do not) (?:think|believe) (?:that|this|it)(?:'s| is| was)\b",
    r"\b(?:makes? no sense|i don'?t understand (?:that|this|your|what))\b",
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
    r"\b(?:perfect|awesome|excellent|wonderful|fantastic|amazing|brilliant|superb|beautiful|terrific|marvelous)\b"
    r"(?! (?!answer|job|work|response|thank|exactly|that|this|now|and|but|i\b|for me|so)\w)",  # not "a perfect gift"
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
    r"(?:n't|\b(?:not|would be|will be|to be|be|how|less|hardly|if (?:it|that|this)(?: is|'s))) (?:\w+ )?(?:correct|"
    r"right|perfect|awesome|excellent|wonderful|great|good|nice|helpful|amazing|useful)\b",
    r"\b(?:how|if|whether|when|until|unless) (?:that|it|this|everything|all)(?: \w+)? works?\b",
    r"^\W*(?:great|good|nice) (?:question|morning|afternoon|evening|day|point)\b",
    r"\b(?:thanks|thank you) (?:in advance|anyway)\b",
)
BARE = compile_any(
    r"\W*(?:(?:ok|okay|k|fine|sure|yes|yeah|yep|yup|no|nope|nah|alright|all right|right|hm+|mhm|i see|understood|"
    r"noted|please|go ahead|continue|proceed|do it|go on)\b\W*)+"
)
